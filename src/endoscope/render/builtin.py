"""The renderers that come with the viewer, in the order in which they are asked."""

from __future__ import annotations

from endoscope.render.attention import AttentionRenderer
from endoscope.render.curves import HistogramRenderer, LineRenderer
from endoscope.render.fields import ChannelsRenderer, HeatmapRenderer, MatrixRenderer
from endoscope.render.images import ImageRenderer, MaskRenderer
from endoscope.render.registry import Renderer
from endoscope.render.tables import ClassesRenderer, TableRenderer
from endoscope.render.texts import AnythingRenderer, ScalarRenderer, TextRenderer
from endoscope.render.tokens import TokensRenderer

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
