"""Images as they are: grey, red-green-blue, or with an alpha channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import colours, pictures, sheets
from endoscope.render.numbers import Array, Numbers
from endoscope.render.pictures import Picture
from endoscope.render.renderer import About, Body, Renderer, View
from endoscope.render.shapes import unbatched


class ImageRenderer(Renderer):
    """One grey, red-green-blue or red-green-blue-alpha image, channels first or last."""

    form = "image"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not value.size:
            return False
        if about.section == "debugger" and value.dtype != "uint8":
            return False  # three maps of a layer are not colours
        if about.section == "outputs" and value.dtype != "uint8" and _has_map_per_class(value, about):
            return False
        return channels_first(value, about) is not None

    def body(self, value: Any, about: About) -> Body:
        x = channels_first(value, about)
        assert x is not None
        channels, height, width = x.shape
        step, shown, factor = pictures.layout((height, width))
        span, note = _brightness(x)
        notes = [note] + ([f"every {sheets.ordinal(step)} pixel of {width} × {height}"] if step > 1 else [])
        notes += ["without its alpha channel"] if channels == 4 else []
        return {
            "width": shown[1] * factor,
            "height": shown[0] * factor,
            "factor": factor,
            "shown": shown[0] * shown[1],
            "of": height * width,
            "range": list(span),
            "note": "; ".join(notes),
        }

    def picture(self, value: Any, about: About, view: View) -> Picture:
        rgb = as_rgb(value, about)
        assert rgb is not None
        return Picture(pictures.enlarged(rgb, pictures.factor_for(rgb.shape[:2], 256)))


def as_rgb(x: Numbers, about: About) -> Array | None:
    """An image as ``(height, width, 3)`` bytes, at most 1,024 pixels wide and high; None if it is not an image."""
    image = channels_first(x, about)
    if image is None:
        return None
    step = pictures.step_for(image.shape[1:], pictures.MOST_PIXELS)
    values = image.take(np.s_[:3, ::step, ::step])
    if values.dtype == np.uint8 and image.dtype != "bool":
        rgb, non_finite = values, None
    else:
        places = pictures.mapped(values, _brightness(image)[0])
        rgb = np.concatenate([colours.GREY[:, 0], np.zeros(3, np.uint8)])[places]
        non_finite = (places >= colours.STEPS).any(0)
    rgb = np.repeat(rgb, 3, 0) if len(rgb) == 1 else rgb
    rgb = np.ascontiguousarray(np.moveaxis(rgb, 0, -1))
    if non_finite is not None:
        rgb[non_finite] = colours.NAN
    return rgb


def _has_map_per_class(x: Numbers, about: About) -> bool:
    """Whether a model's output is one map per class: as many as class names, or four, which cannot be colours."""
    shape = unbatched(x).shape
    return len(shape) == 3 and (shape[0] == 4 or (shape[0] > 1 and shape[0] == len(about.class_names or ())))


def channels_first(x: Numbers, about: About) -> Numbers | None:
    """The image as ``(1, 3 or 4; height; width)``; None if it is not an image."""
    image = unbatched(x)
    if len(image.shape) == 2 and about.section != "outputs" and _is_grey(x, image):
        image = image.reshaped(1, *image.shape)
    if len(image.shape) != 3 or not image.size:
        return None
    if image.shape[0] in (1, 3, 4) and min(image.shape[1:]) >= 2:
        return image
    if image.shape[2] in (3, 4) and min(image.shape[:2]) >= 2:
        step = pictures.step_for(image.shape[:2], 4 * pictures.MOST_PIXELS)
        return Numbers(np.moveaxis(image.take(np.s_[::step, ::step]), -1, 0))
    return None


def _is_grey(x: Numbers, image: Numbers) -> bool:
    """Whether rows and columns of numbers are an image. One row per token has this shape, too, but is more oblong."""
    return x.dtype == "uint8" or (len(x.shape) == 3 and max(image.shape) <= 8 * min(image.shape))


def _brightness(x: Numbers) -> tuple[tuple[float, float], str]:
    """The values that are black and white, and a note of them."""
    if x.dtype == "uint8":
        return (0.0, 255.0), "black 0, white 255"
    (low, high), _ = sheets.span_of(x)
    if low >= 0 and 0 < high <= 1:
        return (0.0, 1.0), "black 0, white 1"
    ends = f"black {low:.4g}, white {high:.4g}".replace("-", "−")
    return (low, high), f"{ends}: the smallest and largest value"
