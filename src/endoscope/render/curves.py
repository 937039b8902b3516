"""Numbers in a row: short rows as lines, long ones as a histogram."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render.numbers import Numbers, finite_range, statistics
from endoscope.render.renderer import About, Body, Renderer
from endoscope.render.shapes import vector

LINE = 2048
"""Values of the longest line."""
_BINS = 64
_HISTOGRAM_OF = 1 << 24


def is_number_list(value: Any) -> bool:
    """Whether a value is a list of plain numbers."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(type(v) in (float, bool) or (type(v) is int and v.bit_length() <= 1000) for v in value)


class LineRenderer(Renderer):
    """Values over their position."""

    form = "line"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, Numbers):
            row = vector(value)
            return row is not None and 0 < row.size <= LINE
        return is_number_list(value)

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, Numbers):
            values, of = value.reshaped(-1).take().tolist(), value.size
        else:
            values, of = [float(v) if abs(v) > 1 << 53 else v for v in value[:LINE]], len(value)
        note = None if len(values) == of else f"the first {len(values):,} of {of:,} values"
        series = [{"name": about.name.rpartition("/")[2], "values": values}]
        return {"series": series, "shown": len(values), "of": of, "note": note}


class HistogramRenderer(Renderer):
    """The distribution of values, of tensors that have no better form."""

    form = "histogram"

    def fits(self, value: Any, about: About) -> bool:
        return isinstance(value, Numbers) and value.size > 1

    def body(self, value: Any, about: About) -> Body:
        stats, ends = statistics(value), finite_range(value)
        if ends is None:
            return {"edges": [], "counts": [], "note": "no value is finite"}
        low, high = map(float, ends)
        half = high * 0.5 - low * 0.5  # high - low may overflow
        steps = np.linspace(0.0, 1.0, _BINS + 1) * half
        counts = np.zeros(_BINS, np.int64)
        for chunk in value.chunks(_HISTOGRAM_OF):
            x = chunk.astype(np.float64)
            x = x[np.isfinite(x)]
            bins = (x * 0.5 - low * 0.5) / (half or 1.0) * _BINS
            counts += np.bincount(np.clip(bins.astype(np.int64), 0, _BINS - 1), minlength=_BINS)
        notes = [f"of the first {_HISTOGRAM_OF:,} of {value.size:,} values"] if value.size > _HISTOGRAM_OF else []
        if stats.nan or stats.inf:
            notes.append(f"{stats.nan:,} NaN and {stats.inf:,} infinite values are not counted")
        return {"edges": (low + steps + steps).tolist(), "counts": counts.tolist(), "note": "; ".join(notes) or None}
