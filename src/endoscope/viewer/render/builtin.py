"""The renderers that come with the viewer, in the order in which they are asked."""

from __future__ import annotations

from endoscope.viewer.render.attention import AttentionRenderer
from endoscope.viewer.render.curves import HistogramRenderer, LineRenderer
from endoscope.viewer.render.fields import ChannelsRenderer, HeatmapRenderer, MatrixRenderer
from endoscope.viewer.render.images import ImageRenderer, MaskRenderer
from endoscope.viewer.render.registry import Renderer
from endoscope.viewer.render.tables import ClassesRenderer, TableRenderer
from endoscope.viewer.render.texts import AnythingRenderer, ScalarRenderer, TextRenderer
from endoscope.viewer.render.tokens import TokensRenderer

RENDERERS: tuple[Renderer, ...] = (
    ScalarRenderer(),
    ClassesRenderer(),
    AttentionRenderer(),
    HeatmapRenderer(),
    MaskRenderer(),
    ImageRenderer(),
    ChannelsRenderer(),
    MatrixRenderer(),
    TokensRenderer(),
    LineRenderer(),
    HistogramRenderer(),
    TableRenderer(),
    TextRenderer(),
    AnythingRenderer(),
)
