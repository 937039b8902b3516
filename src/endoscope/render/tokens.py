"""Token ids and other integers that name something: listed one by one, because a curve of them means nothing."""

from __future__ import annotations

from typing import Any

from endoscope.render.numbers import Numbers, statistics
from endoscope.render.renderer import About, Body, Renderer
from endoscope.render.shapes import vector

TOKENS = 1024
"""Ids that are shown."""
_NAMED = ("token", "_ids", "input_id", "word_id")
_WIDE = ("int32", "int64", "uint32", "uint64")  # dtypes of ids; audio and bytes have narrower ones
_LEAST = -100  # negative ids down to -100 mark what a loss ignores


class TokensRenderer(Renderer):
    """Ids, with the text of each where the datapoint has as many tokens."""

    form = "tokens"

    def fits(self, value: Any, about: About) -> bool:
        named = about.named(*_NAMED)
        if about.section == "debugger" and not named:
            return False
        if isinstance(value, list):
            return _are_ids(value)
        row = vector(value) if isinstance(value, Numbers) and value.is_integral else None
        if row is None or row.size < 2 or row.dtype == "bool":
            return False
        return named or _look_like_ids(row)

    def body(self, value: Any, about: About) -> Body:
        row = value.reshaped(-1).take(slice(TOKENS)).tolist() if isinstance(value, Numbers) else value[:TOKENS]
        of = value.size if isinstance(value, Numbers) else len(value)
        texts = about.tokens if about.tokens is not None and len(about.tokens) == of else None
        return {
            "values": row,
            "tokens": list(texts[: len(row)]) if texts is not None else None,
            "shown": len(row),
            "of": of,
            "note": None if len(row) == of else f"the first {len(row):,} of {of:,}",
        }


def _are_ids(values: list[Any]) -> bool:
    return len(values) > 1 and all(type(v) is int for v in values) and min(values) >= _LEAST


def _look_like_ids(row: Numbers) -> bool:
    low = statistics(row).min if row.dtype in _WIDE else None
    return low is not None and low >= _LEAST
