"""Arrays to pictures: values to places in a colour map, tiles with gaps, whole-number enlargement, and PNG.

A picture with a colour map is kept as one byte a pixel and its palette, which is small and quick to write. NaN and
infinities have colours of their own, and gaps are transparent.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

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
        file = io.BytesIO()
        if self.table is None:
            Image.fromarray(np.ascontiguousarray(self.pixels, np.uint8)).save(file, "PNG", compress_level=1)
            return file.getvalue()
        image = Image.fromarray(np.ascontiguousarray(self.pixels, np.uint8))
        image.putpalette(palette(self.table).tobytes())
        image.save(file, "PNG", compress_level=1, transparency=_GAP)
        return file.getvalue()

    def rgb(self) -> Array:
        """Its pixels as red, green, blue; gaps are white."""
        return self.pixels if self.table is None else palette(self.table)[self.pixels]


def palette(table: Table) -> Table:
    return np.concatenate([table, np.array([colours.NAN, colours.INF, (255, 255, 255)], np.uint8)])


def mapped(values: Array, span: Range) -> Array:
    """Values to places in a colour map, one byte each; those outside of the range take its ends."""
    low, high = span
    x = values.astype(np.float64)
    finite = np.isfinite(x)
    every = bool(finite.all())
    if not every:
        x = np.where(finite, x, low)
    width = high * 0.5 - low * 0.5  # halves: the whole may leave the range of doubles
    if width > 0:
        x = np.clip((x * 0.5 - low * 0.5) / width, 0.0, 1.0)
        places = np.rint(x * (STEPS - 1)).astype(np.uint8)
    else:
        places = np.full(x.shape, STEPS // 2, np.uint8)
    if not every:
        places[np.isnan(values)] = _NAN
        places[np.isinf(values)] = _INF
    return places


def enlarged(pixels: Array, factor: int) -> Array:
    """Every pixel as a square of ``factor`` by ``factor``."""
    return pixels if factor == 1 else pixels.repeat(factor, 0).repeat(factor, 1)


def factor_for(size: Sequence[int], wanted: int) -> int:
    """How much to enlarge so that the longer side comes near ``wanted`` pixels; 1 when it is there already."""
    return max(1, wanted // max(1, *size))


def step_for(size: Sequence[int], most: int) -> int:
    """Every how many-th pixel to take so that the longer side has at most ``most``."""
    return max(1, -(-max(size) // most))


def tiled(tiles: Array, columns: int, gap: int) -> Array:
    """``(n, height, width)`` places beside and below each other, with gaps."""
    n, height, width = tiles.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), _GAP, np.uint8)
    for k in range(n):
        top, left = (k // columns) * (height + gap), (k % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = tiles[k]
    return sheet


def blended(below: Array, above: Array, share: float = 0.55) -> Array:
    """One red, green, blue picture over another of the same size."""
    return np.rint(below * (1 - share) + above * share).astype(np.uint8)


def lies_over(image: Array, shape: Sequence[int]) -> bool:
    """Whether an image and a map of this height and width have the same proportions."""
    return bool(image.shape[0] * shape[1] == image.shape[1] * shape[0])


def laid_over(image: Array, above: Array, *, smooth: bool = True) -> Array:
    """A red, green, blue picture over an image of the same proportions, at the size at which the image is shown; not
    ``smooth`` where the colours between two others mean something else."""
    below = enlarged(image, factor_for(image.shape[:2], 256))
    height, width = below.shape[:2]
    factor = height // above.shape[0]
    if (above.shape[0] * factor, above.shape[1] * factor) == (height, width):
        return blended(below, enlarged(above, factor))
    return blended(below, resized(above, height, width, smooth=smooth))


def resized(rgb: Array, height: int, width: int, *, smooth: bool) -> Array:
    """A red, green, blue picture in another size."""
    how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(rgb).resize((width, height), how))
