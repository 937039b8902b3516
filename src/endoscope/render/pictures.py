"""Turns arrays into pictures: places in a colour map, tiles with gaps, enlargement by whole factors, PNG.

A picture with a colour map has one byte per pixel and a palette, so it is small and quick to write. NaN and
infinities have their own colours, and gaps are transparent.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from endoscope.render import colours
from endoscope.render.colours import STEPS, Table
from endoscope.render.numbers import Array

MOST_PIXELS = 1024
"""The longer side of a picture, at most."""
_NAN, _INF, _GAP = STEPS, STEPS + 1, STEPS + 2

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """Pixels: ``(height, width)`` bytes with a palette, or ``(height, width, 3)`` red, green, blue."""

    pixels: Array
    table: Table | None = None

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    def png(self) -> bytes:
        from PIL import Image  # here, because everything but the picture itself works without Pillow

        file = io.BytesIO()
        image = Image.fromarray(np.ascontiguousarray(self.pixels, np.uint8))
        if self.table is None:
            image.save(file, "PNG", compress_level=1)
        else:
            image.putpalette(_palette(self.table).tobytes())
            image.save(file, "PNG", compress_level=1, transparency=_GAP)
        return file.getvalue()

    def rgb(self) -> Array:
        """Its pixels as red, green, blue; gaps are white."""
        return self.pixels if self.table is None else _palette(self.table)[self.pixels]


def _palette(table: Table) -> Table:
    return np.concatenate([table, np.array([colours.NAN, colours.INF, (255, 255, 255)], np.uint8)])


def mapped(values: Array, span: Range) -> Array:
    """Values as places in a colour map, one byte each. Values outside of the range take the colour of its end."""
    low, high = span
    x = values.astype(np.float64)
    finite = np.isfinite(x)
    x[~finite] = low
    width = high * 0.5 - low * 0.5  # high - low may overflow
    if width > 0:
        x = np.clip((x * 0.5 - low * 0.5) / width, 0.0, 1.0)
        places = np.rint(x * (STEPS - 1)).astype(np.uint8)
    else:
        places = np.full(x.shape, STEPS // 2, np.uint8)
    if not finite.all():
        places[np.isnan(values)] = _NAN
        places[np.isinf(values)] = _INF
    return places


def enlarged(pixels: Array, factor: int) -> Array:
    """Every pixel as a square of ``factor`` by ``factor``."""
    return pixels if factor == 1 else pixels.repeat(factor, 0).repeat(factor, 1)


def factor_for(size: Sequence[int], target: int) -> int:
    """The factor that enlarges the longer side to about ``target`` pixels, at least 1."""
    return max(1, target // max(1, *size))


def step_for(size: Sequence[int], most: int) -> int:
    """The step between the pixels that are taken so that the longer side has at most ``most``."""
    return max(1, -(-max(size) // most))


def layout(size: Sequence[int]) -> tuple[int, tuple[int, int], int]:
    """The step between the pixels that are taken, the height and width of the result, and its enlargement."""
    step = step_for(size, MOST_PIXELS)
    height, width = -(-size[0] // step), -(-size[1] // step)
    return step, (height, width), factor_for((height, width), 256)


def tiled(tiles: Array, columns: int, gap: int) -> Array:
    """``(n, height, width)`` places in rows of ``columns`` tiles, with gaps."""
    n, height, width = tiles.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), _GAP, np.uint8)
    for k in range(n):
        top, left = (k // columns) * (height + gap), (k % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = tiles[k]
    return sheet


def lies_over(image: Array | None, shape: Sequence[int]) -> bool:
    """Whether there is an image, with the proportions of a map of this height and width."""
    return image is not None and bool(image.shape[0] * shape[1] == image.shape[1] * shape[0])


def laid_over(image: Array | None, above: Array, shape: Sequence[int], *, smooth: bool = True) -> Array:
    """A red, green, blue picture, drawn from a map of this height and width, over an image of its proportions.

    ``smooth`` blends neighbouring colours when the sizes differ: wrong for a mask, where a mixture is another class.
    """
    if image is None or not lies_over(image, shape):
        raise ValueError("the input is not an image of the proportions of this map")
    from PIL import Image

    below = enlarged(image, factor_for(image.shape[:2], 256))
    height, width = below.shape[:2]
    factor = height // above.shape[0]
    if (above.shape[0] * factor, above.shape[1] * factor) == (height, width):
        above = enlarged(above, factor)
    else:
        how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
        above = np.asarray(Image.fromarray(above).resize((width, height), how))
    return np.rint(below * 0.45 + above * 0.55).astype(np.uint8)
