"""Masks: one class per pixel, with a colour per class."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import colours, pictures, sheets
from endoscope.render.numbers import Numbers, statistics
from endoscope.render.pictures import Picture
from endoscope.render.renderer import About, Body, Renderer, View
from endoscope.render.shapes import unbatched

_MOST_CLASSES = 64
_SMALLEST = 4  # pixels of a mask's shorter side


class MaskRenderer(Renderer):
    """Integers or booleans from -1 to 255 over pixels."""

    form = "mask"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not value.is_integral:
            return False
        mask = _mask(value)
        if mask is None or (value.dtype == "uint8" and about.section == "inputs" and not about.named("mask", "seg")):
            return False
        stats = statistics(mask)
        return stats.min is not None and stats.max is not None and stats.min >= -1 and stats.max < 256

    def body(self, value: Any, about: About) -> Body:
        mask = _mask(value)
        assert mask is not None
        counts = np.zeros(257, np.int64)  # of the classes -1 to 255
        for chunk in mask.chunks():
            counts += np.bincount(chunk.astype(np.int64) + 1, minlength=257)
        present = np.flatnonzero(counts)
        classes = []
        for k in present[np.argsort(-counts[present], kind="stable")][:_MOST_CLASSES].tolist():
            name, colour = about.class_name(k - 1), colours.css(colours.category(k - 1))
            classes.append({"index": k - 1, "name": name, "colour": colour, "share": float(counts[k] / mask.size)})
        step, (height, width), factor = pictures.layout(mask.shape)
        notes = [f"every {sheets.ordinal(step)} pixel"] if step > 1 else []
        notes += [f"{_MOST_CLASSES} of {len(present)} classes are listed"] if len(present) > _MOST_CLASSES else []
        size = {"width": width * factor, "height": height * factor, "factor": factor}
        image = about.image() if about.section != "inputs" else None
        over = {"overlay": True} if pictures.lies_over(image, mask.shape) else {}
        return {**size, **over, "classes": classes, "note": "; ".join(notes) or None}

    def picture(self, value: Any, about: About, view: View) -> Picture:
        mask = _mask(value)
        assert mask is not None
        step, _, factor = pictures.layout(mask.shape)
        classes = mask.take(np.s_[::step, ::step]).astype(np.int64)
        rgb = np.array([colours.category(k) for k in range(-1, 256)], np.uint8)[classes + 1]
        if view.overlay:
            return Picture(pictures.laid_over(about.image(), rgb, mask.shape, smooth=False))
        return Picture(pictures.enlarged(rgb, factor))


def _mask(x: Numbers) -> Numbers | None:
    inner = unbatched(unbatched(x))
    return inner if len(inner.shape) == 2 and min(inner.shape) >= _SMALLEST else None
