"""Tables: the scalars of a mapping, lists of texts, and the outputs of a classification per class."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from endoscope.render.numbers import Array, Numbers
from endoscope.render.plain import cell, is_scalar, keys_of, members
from endoscope.render.renderer import About, Body, Renderer

ROWS = 100
_CLASSES = 10
_CLASS_KEYS = ("class", "label", "target", "prediction", "predicted")


class TableRenderer(Renderer):
    """The names and values of a mapping, or the items of a list by position."""

    form = "table"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, np.ndarray):  # of text
            return value.ndim == 1 and value.size > 0
        return members(value) is not None and keys_of(value) > 0

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, np.ndarray):
            return _rows_body("#", ((k, cell(v)) for k, v in enumerate(value[:ROWS].tolist())), value.size)
        by_position = isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields")
        rows = ((cell(k), _value(k, v, about)) for k, v in members(value) or ())
        return _rows_body("#" if by_position else "name", rows, keys_of(value))


def _value(key: str, value: Any, about: About) -> Any:
    """A cell. The index of a class is followed by its name."""
    if type(value) is int and any(word in key.lower() for word in _CLASS_KEYS):
        name = about.class_name(value)
        if name is not None and name != str(value):
            return f"{value} ({cell(name)})"
    return cell(value) if is_scalar(value) or isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def _rows_body(first_column: str, rows: Iterable[tuple[Any, Any]], of: int) -> Body:
    """A table of at most 100 rows, with a note of how many there are."""
    shown = [list(row) for row in islice(rows, ROWS)]
    note = None if len(shown) == of else f"the first {len(shown):,} of {of:,} rows"
    return {"columns": [first_column, "value"], "rows": shown, "shown": len(shown), "of": of, "note": note}


class ClassesRenderer(Renderer):
    """One number per class: the largest first, with probabilities."""

    form = "table"

    def fits(self, value: Any, about: About) -> bool:
        is_row = isinstance(value, Numbers) and value.size > 1 and sum(n != 1 for n in value.shape) == 1
        return about.classification and is_row

    def body(self, value: Any, about: About) -> Body:
        outputs = value.reshaped(-1).take().astype(np.float64)
        shares, how = probabilities(outputs)
        order = np.argsort(-np.where(np.isnan(outputs), np.inf, outputs), kind="stable")[:_CLASSES].tolist()
        rows = [
            [k, cell(about.class_name(k) or str(k)), outputs[k].item(), None if shares is None else shares[k].item()]
            for k in order
        ]
        notes = [f"the {len(rows)} largest of {len(outputs):,} classes"] if len(rows) < len(outputs) else []
        return {
            "columns": ["class", "name", "output", "probability"],
            "rows": rows,
            "shown": len(rows),
            "of": len(outputs),
            "note": "; ".join([*notes, f"probability: {how}"]),
        }


def probabilities(outputs: Array) -> tuple[Array | None, str]:
    """Probabilities from the outputs of a classification, and how they were computed."""
    if not np.isfinite(outputs).all():
        return None, "none, because not all outputs are finite"
    if (outputs >= 0).all() and abs(outputs.sum() - 1) < 1e-3:
        return outputs, "the outputs themselves, which add up to 1"
    powers = np.exp(outputs - outputs.max())
    return powers / powers.sum(), "softmax of the outputs"
