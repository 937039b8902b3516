"""Images as they are, and masks with a colour for each class."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import colours, pictures, sheets
from endoscope.render.numbers import Array, Numbers, statistics
from endoscope.render.pictures import Picture
from endoscope.render.registry import About, Body, Renderer, View
from endoscope.render.shapes import unbatched

_MOST_CLASSES = 64
_SMALLEST = 4  # pixels of a mask's shorter side


class ImageRenderer(Renderer):
    """One grey, red-green-blue or red-green-blue-alpha image, channels first or last."""

    form = "image"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not value.size:
            return False
        if about.section == "debugger" and value.dtype != "uint8":
            return False  # three maps of a layer are no colours
        if about.section == "outputs" and value.dtype != "uint8" and _one_a_class(value, about):
            return False
        return channels_first(value, about) is not None

    def body(self, value: Any, about: About) -> Body:
        x = channels_first(value, about)
        assert x is not None
        _, height, width = x.shape
        step = pictures.step_for((height, width), pictures.MOST_PIXELS)
        shown = -(-height // step), -(-width // step)
        factor = pictures.factor_for(shown, 256)
        span, note = _brightness(x)
        notes = [note] + ([f"every {sheets.ordinal(step)} pixel of {width} × {height}"] if step > 1 else [])
        notes += ["without its alpha channel"] if x.shape[0] == 4 else []
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
    """An image as ``(height, width, 3)`` bytes, at most 1,024 pixels wide and high; None if it is none."""
    image = channels_first(x, about)
    if image is None:
        return None
    step = pictures.step_for(image.shape[1:], pictures.MOST_PIXELS)
    values = image.take(np.s_[:3, ::step, ::step])
    if values.dtype == np.uint8 and image.dtype != "bool":
        rgb = values
        odd = None
    else:
        places = pictures.mapped(values, _brightness(image)[0])
        odd = (places >= colours.STEPS).any(0)
        rgb = np.concatenate([colours.GREY[:, 0], np.zeros(3, np.uint8)])[places]
    rgb = np.repeat(rgb, 3, 0) if len(rgb) == 1 else rgb
    rgb = np.moveaxis(rgb, 0, -1)
    if odd is not None and odd.any():
        rgb = rgb.copy()
        rgb[odd] = colours.NAN
    return np.ascontiguousarray(rgb)


def _one_a_class(x: Numbers, about: About) -> bool:
    """Whether a model's output is a map for each class: as many as there are names, or four, which are no colours."""
    channels = unbatched(x).shape[0]
    return channels == 4 or (channels > 1 and channels == len(about.class_names or ()))


def channels_first(x: Numbers, about: About) -> Numbers | None:
    """``(1, 3 or 4; height; width)``, or None."""
    image = unbatched(x)
    if len(image.shape) == 2 and (len(x.shape) == 3 or x.dtype == "uint8") and about.section != "outputs":
        image = image.reshaped(1, *image.shape)
        # One row of numbers for each token has this shape, too: an image is not that oblong.
        if x.dtype != "uint8" and max(image.shape) > 8 * min(image.shape[1:]):
            return None
    if len(image.shape) != 3 or not image.size:
        return None
    if image.shape[0] in (1, 3, 4) and min(image.shape[1:]) >= 2:
        return image
    if image.shape[2] in (3, 4) and min(image.shape[:2]) >= 2:
        return _moved(image)
    return None


def _moved(image: Numbers) -> Numbers:
    step = pictures.step_for(image.shape[:2], 4 * pictures.MOST_PIXELS)
    return Numbers(np.moveaxis(image.take(np.s_[::step, ::step]), -1, 0))


def _brightness(x: Numbers) -> tuple[tuple[float, float], str]:
    """The values that are black and white."""
    if x.dtype == "uint8":
        return (0.0, 255.0), "black 0, white 255"
    (low, high), _ = sheets.span_of(x)
    if low >= 0 and high <= 1 and high > 0:
        return (0.0, 1.0), "black 0, white 1"
    ends = f"black {low:.4g}, white {high:.4g}".replace("-", "−")
    return (low, high), f"{ends}: the smallest and largest value"


class MaskRenderer(Renderer):
    """One class for each pixel."""

    form = "mask"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or not value.whole:
            return False
        mask = _mask(value)
        if mask is None or (value.dtype == "uint8" and not about.named("mask", "seg") and about.section == "inputs"):
            return False
        found = statistics(mask)
        return found.min is not None and found.max is not None and found.min >= -1 and found.max < 256

    def body(self, value: Any, about: About) -> Body:
        mask = _mask(value)
        assert mask is not None
        counts = np.zeros(257, np.int64)
        for chunk in mask.chunks():
            counts += np.bincount(chunk.astype(np.int64) + 1, minlength=257)
        present = np.flatnonzero(counts)
        classes = [
            {
                "index": int(k) - 1,
                "name": class_name(int(k) - 1, about.class_names),
                "colour": colours.css(colours.category(int(k) - 1)),
                "share": float(counts[k] / mask.size),
            }
            for k in present[np.argsort(-counts[present], kind="stable")][:_MOST_CLASSES]
        ]
        height, width = mask.shape
        step = pictures.step_for((height, width), pictures.MOST_PIXELS)
        height, width = -(-height // step), -(-width // step)
        factor = pictures.factor_for((height, width), 256)
        notes = [f"every {sheets.ordinal(step)} pixel"] if step > 1 else []
        notes += [f"{_MOST_CLASSES} of {len(present)} classes are listed"] if len(present) > _MOST_CLASSES else []
        size = {"width": width * factor, "height": height * factor, "factor": factor}
        image = about.image() if about.section != "inputs" else None
        over = {"overlay": True} if image is not None and pictures.lies_over(image, mask.shape) else {}
        return {**size, **over, "classes": classes, "note": "; ".join(notes) or None}

    def picture(self, value: Any, about: About, view: View) -> Picture:
        mask = _mask(value)
        assert mask is not None
        step = pictures.step_for(mask.shape, pictures.MOST_PIXELS)
        classes = mask.take(np.s_[::step, ::step]).astype(np.int64)
        table = np.array([colours.category(k) for k in range(-1, 256)], np.uint8)
        rgb = table[classes + 1]
        if view.overlay:
            image = about.image()
            if image is None or not pictures.lies_over(image, mask.shape):
                raise ValueError("the input is no image that this mask lies over")
            return Picture(pictures.laid_over(image, rgb, smooth=False))
        return Picture(pictures.enlarged(rgb, pictures.factor_for(classes.shape, 256)))


def _mask(x: Numbers) -> Numbers | None:
    inner = unbatched(unbatched(x))
    return inner if len(inner.shape) == 2 and min(inner.shape) >= _SMALLEST else None


def class_name(index: int, names: Any) -> str | None:
    """The name of a class, if it has one."""
    return names[index] if names is not None and 0 <= index < len(names) else None
