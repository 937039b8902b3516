"""Maps in colour: channels as tiles, a heatmap over the input, a table of numbers such as tokens and features."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import colours, pictures, sheets
from endoscope.render.numbers import Numbers
from endoscope.render.pictures import Picture
from endoscope.render.registry import About, Body, Renderer, View
from endoscope.render.shapes import maps, matrix, unbatched
from endoscope.render.sheets import Sheet

_OVER_INPUT = ("cam", "saliency", "heatmap", "relevance", "attribution", "occlusion")


class ChannelsRenderer(Renderer):
    """``(B, C, H, W)`` and its like: one tile a channel. Of volumes the middle slices."""

    form = "channels"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers):
            return False
        found = maps(value)
        return found is not None and (found.count > 1 or found.middle is not None)

    def body(self, value: Any, about: About) -> Body:
        found = maps(value)
        assert found is not None
        return sheets.tiles_body(found, Sheet.of(found), "maps" if found.note else "channels")

    def picture(self, value: Any, about: About, view: View) -> Picture:
        found = maps(value)
        assert found is not None
        return sheets.tiles_picture(found, Sheet.of(found), view)


class MatrixRenderer(Renderer):
    """Rows and columns of numbers in colour: tokens and their features, a weight, one channel."""

    form = "heatmap"

    def fits(self, value: Any, about: About) -> bool:
        return isinstance(value, Numbers) and matrix(value) is not None

    def body(self, value: Any, about: About) -> Body:
        x = self._matrix(value)
        (height, width), step, factor = _layout(x)
        span, odd = sheets.span_of(x)
        notes = [f"{x.shape[0]:,} rows, {x.shape[1]:,} columns"]
        if step > 1:
            notes.append(f"every {sheets.ordinal(step)} row and column")
        body: Body = {
            "width": width * factor,
            "height": height * factor,
            "factor": factor,
            **sheets.scale_of(span, odd, colours.SEQUENTIAL),
            "note": "; ".join(notes),
        }
        if about.tokens is not None and len(about.tokens) == x.shape[0]:
            body["tokens"] = list(about.tokens[:1000])
        return body

    def picture(self, value: Any, about: About, view: View) -> Picture:
        x = self._matrix(value)
        _, step, factor = _layout(x)
        places = pictures.mapped(x.take(np.s_[::step, ::step]), view.span or sheets.span_of(x)[0])
        return Picture(pictures.enlarged(places, factor), colours.SEQUENTIAL)

    def _matrix(self, value: Numbers) -> Numbers:
        found = matrix(value)
        assert found is not None
        return found


class HeatmapRenderer(MatrixRenderer):
    """A map over the input, such as Grad-CAM; laid over it when the input is an image of the same proportions."""

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not about.named(*_OVER_INPUT):
            return False
        return len(value.shape) >= 2 and matrix(value) is not None and len(unbatched(unbatched(value)).shape) == 2

    def body(self, value: Any, about: About) -> Body:
        body = super().body(value, about)
        image = about.image()
        x = self._matrix(value)
        if image is not None and pictures.lies_over(image, x.shape):
            body["overlay"] = True
        return body

    def picture(self, value: Any, about: About, view: View) -> Picture:
        alone = super().picture(value, about, view)
        if not view.overlay:
            return alone
        image, x = about.image(), self._matrix(value)
        if image is None or not pictures.lies_over(image, x.shape):
            raise ValueError("the input is no image that this map lies over")
        step = pictures.step_for(x.shape, pictures.MOST_PIXELS)
        heat = Picture(pictures.mapped(x.take(np.s_[::step, ::step]), sheets.span_of(x)[0]), colours.SEQUENTIAL).rgb()
        return Picture(pictures.laid_over(image, heat))


def _layout(x: Numbers) -> tuple[tuple[int, int], int, int]:
    """Height and width of what is shown of a matrix, every how many-th value that is, and how much it is enlarged."""
    step = pictures.step_for(x.shape, pictures.MOST_PIXELS)
    height, width = -(-x.shape[0] // step), -(-x.shape[1] // step)
    return (height, width), step, pictures.factor_for((height, width), 256)
