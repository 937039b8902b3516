"""Tables: the scalars of a mapping, lists of texts, and what a classification gave for each class."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from endoscope.render.images import class_name
from endoscope.render.numbers import Array, Numbers
from endoscope.render.plain import cell, is_scalar, keys_of, members
from endoscope.render.registry import About, Body, Renderer

ROWS = 100
_CLASSES = 10
_CLASS_KEYS = ("class", "label", "target", "prediction", "predicted")


class TableRenderer(Renderer):
    """Names and values of a mapping, or a list's items by their place."""

    form = "table"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, np.ndarray):  # of text
            return value.ndim == 1 and value.size > 0
        return members(value) is not None and keys_of(value) > 0

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, np.ndarray):
            return rows_body(["#", "value"], ((k, cell(v)) for k, v in enumerate(value[:ROWS].tolist())), value.size)
        held = members(value)
        assert held is not None
        place = isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields")
        rows = ((cell(k), _value(k, v, about)) for k, v in held)
        return rows_body(["#" if place else "name", "value"], rows, keys_of(value))


def _value(key: str, value: Any, about: About) -> Any:
    """A cell; the index of a class has its name beside it."""
    if type(value) is int and any(word in key.lower() for word in _CLASS_KEYS):
        name = class_name(value, about.class_names)
        if name is not None and name != str(value):
            return f"{value} ({cell(name)})"
    return cell(value) if is_scalar(value) or isinstance(value, (list, tuple)) else cell(f"a {type(value).__name__}")


def rows_body(columns: list[str], rows: Iterable[tuple[Any, ...]], of: int) -> Body:
    """A table of at most 100 rows, which says how many there are."""
    shown = [list(row) for row in islice(rows, ROWS)]
    note = None if len(shown) == of else f"the first {len(shown):,} of {of:,} rows"
    return {"columns": columns, "rows": shown, "shown": len(shown), "of": of, "note": note}


class ClassesRenderer(Renderer):
    """One number for each class: the largest first, with probabilities."""

    form = "table"

    def fits(self, value: Any, about: About) -> bool:
        return (
            about.classification
            and isinstance(value, Numbers)
            and value.size > 1
            and sum(n != 1 for n in value.shape) == 1
        )

    def body(self, value: Any, about: About) -> Body:
        outputs = value.reshaped(-1).take().astype(np.float64)
        shares, how = probabilities(outputs)
        order = np.argsort(-np.where(np.isnan(outputs), np.inf, outputs), kind="stable")[:_CLASSES].tolist()
        rows = [
            [
                k,
                cell(class_name(k, about.class_names) or str(k)),
                outputs[k].item(),
                None if shares is None else shares[k].item(),
            ]
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
    """Probabilities from the outputs of a classification, and how they were made."""
    if not np.isfinite(outputs).all():
        return None, "none, because not all outputs are finite"
    if (outputs >= 0).all() and abs(outputs.sum() - 1) < 1e-3:
        return outputs, "the outputs themselves, which add up to 1"
    powers = np.exp(outputs - outputs.max())
    return powers / powers.sum(), "softmax of the outputs"
