"""The picture of a score map: one cell per datapoint, the worst first."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from endoscope.render.numbers import Array
from endoscope.report import html
from endoscope.runs.ranking import Bools, Column, Floats

EXPLANATION = (
    "One cell per datapoint, the worst first. Failures have a dark corner, NaN is hatched, infinite values are violet, "
    "and a datapoint without the score is hollow."
)
MOST_CELLS = 50_000
_CORNERED = 7  # pixels of the smallest cell that has room for the corner of a failure
_GOOD_TO_BAD = [(217, 224, 237), (159, 178, 216), (234, 169, 113), (194, 65, 12)]
_NAN, _INF, _MISSING, _CORNER = (91, 95, 102), (91, 75, 183), (198, 201, 206), (28, 29, 31)


def score_map(column: Column, fails: Bools, alt: str) -> str:
    order = column.worst_first()[:MOST_CELLS]
    failing = fails[order]
    size = max(3, min(22, int(math.sqrt(960 * 420 / max(len(order), 1)))))
    inner = size - (2 if size >= 8 else 1 if size >= 4 else 0)
    columns = min(len(order), 960 // size) or 1
    rows = -(-len(order) // columns)
    cells = np.zeros((rows * columns, size, size, 4), np.uint8)
    cells[: len(order)] = _cells(column.values[order], column.missing[order], column.direction == "higher", size, inner)
    if inner >= _CORNERED:
        y, x = np.mgrid[:size, :size]
        length = max(3, inner // 3)
        corner = (y < length) & (x >= inner - length + y) & (x < inner)
        cells[np.flatnonzero(failing)[:, None], corner.nonzero()[0], corner.nonzero()[1]] = (*_CORNER, 255)
    sheet = cells.reshape(rows, columns, size, size, 4).swapaxes(1, 2).reshape(rows * size, columns * size, 4)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "PNG", compress_level=6)
    drawn = html.image(file.getvalue(), alt, (columns * size, rows * size))
    if len(order) < len(column.values):
        drawn += html.note(f"the worst {MOST_CELLS:,} of {len(column.values):,} datapoints are drawn")
    if inner < _CORNERED and failing.any():
        drawn += html.note(f"the cells are too small for corners: the first {int(failing.sum()):,} are the failures")
    return drawn


def _cells(values: Floats, missing: Bools, higher: bool, size: int, inner: int) -> Array:
    """Cells of ``size`` pixels, of which ``inner`` are drawn, without the corners."""
    nan = np.isnan(values) & ~missing
    colours = _colours(values, higher)
    colours[np.isinf(values)], colours[nan], colours[missing] = _INF, _NAN, _MISSING
    cells = np.zeros((len(values), size, size, 4), np.uint8)
    cells[:, :inner, :inner, :3] = colours[:, None, None]
    cells[:, :inner, :inner, 3] = 255
    cells[missing, 1 : inner - 1, 1 : inner - 1] = 0
    y, x = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) % 4 >= 2)
    cells[np.flatnonzero(nan)[:, None], y, x] = 0
    return cells


def _colours(values: Floats, higher: bool) -> Array:
    """Red, green, blue of each value, from good to bad between the smallest and the largest."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    at = np.clip(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)
    at = (at / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)  # high - low may overflow
    at = 1 - at if higher else at
    stops = np.array(_GOOD_TO_BAD, float)
    return np.stack([np.interp(at * 3, range(4), stops[:, c]) for c in range(3)], 1).round().astype(np.uint8)
