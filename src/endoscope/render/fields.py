"""Numbers over two dimensions, in colour: channels as tiles, a heatmap over the input, a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import colours, pictures, sheets
from endoscope.render.numbers import Numbers
from endoscope.render.pictures import Picture
from endoscope.render.renderer import About, Body, Renderer, View
from endoscope.render.shapes import maps, matrix, unbatched
from endoscope.render.sheets import Sheet

_OVER_INPUT = ("cam", "saliency", "heatmap", "relevance", "attribution", "occlusion")


class ChannelsRenderer(Renderer):
    """``(B, C, H, W)`` and similar: one tile per channel, and the middle slice of each volume."""

    form = "channels"

    def fits(self, value: Any, about: About) -> bool:
        channels = maps(value) if isinstance(value, Numbers) else None
        return channels is not None and (channels.count > 1 or channels.middle is not None)

    def body(self, value: Any, about: About) -> Body:
        channels = maps(value)
        assert channels is not None
        return sheets.tiles_body(channels, Sheet.of(channels), "maps" if channels.note else "channels")

    def picture(self, value: Any, about: About, view: View) -> Picture:
        channels = maps(value)
        assert channels is not None
        return sheets.tiles_picture(channels, Sheet.of(channels), view)


class MatrixRenderer(Renderer):
    """Rows and columns of numbers: tokens and their features, a weight, one channel."""

    form = "heatmap"

    def fits(self, value: Any, about: About) -> bool:
        return isinstance(value, Numbers) and matrix(value) is not None

    def body(self, value: Any, about: About) -> Body:
        x = _matrix(value)
        step, (height, width), factor = pictures.layout(x.shape)
        span, non_finite = sheets.span_of(x)
        notes = [f"{x.shape[0]:,} rows, {x.shape[1]:,} columns"]
        notes += [f"every {sheets.ordinal(step)} row and column"] if step > 1 else []
        body: Body = {
            "width": width * factor,
            "height": height * factor,
            "factor": factor,
            **sheets.scale_of(span, non_finite, colours.SEQUENTIAL),
            "note": "; ".join(notes),
        }
        if about.tokens is not None and len(about.tokens) == x.shape[0]:
            body["tokens"] = list(about.tokens[:1000])
        return body

    def picture(self, value: Any, about: About, view: View) -> Picture:
        x = _matrix(value)
        step, _, factor = pictures.layout(x.shape)
        places = pictures.mapped(x.take(np.s_[::step, ::step]), view.span or sheets.span_of(x)[0])
        return Picture(pictures.enlarged(places, factor), colours.SEQUENTIAL)


class HeatmapRenderer(MatrixRenderer):
    """A map over the input, such as Grad-CAM; drawn over it when the input is an image of the same proportions."""

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not about.named(*_OVER_INPUT):
            return False
        return len(value.shape) >= 2 and matrix(value) is not None and len(unbatched(unbatched(value)).shape) == 2

    def body(self, value: Any, about: About) -> Body:
        over = {"overlay": True} if pictures.lies_over(about.image(), _matrix(value).shape) else {}
        return super().body(value, about) | over

    def picture(self, value: Any, about: About, view: View) -> Picture:
        if not view.overlay:
            return super().picture(value, about, view)
        x = _matrix(value)
        step = pictures.step_for(x.shape, pictures.MOST_PIXELS)
        heat = Picture(pictures.mapped(x.take(np.s_[::step, ::step]), sheets.span_of(x)[0]), colours.SEQUENTIAL)
        return Picture(pictures.laid_over(about.image(), heat.rgb(), x.shape))


def _matrix(value: Numbers) -> Numbers:
    x = matrix(value)
    assert x is not None
    return x
