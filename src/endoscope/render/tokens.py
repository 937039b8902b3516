"""Rows of whole numbers that name something, such as the ids of tokens: one after the other, and no curve."""

from __future__ import annotations

from typing import Any

from endoscope.render.numbers import Numbers, statistics
from endoscope.render.registry import About, Body, Renderer
from endoscope.render.shapes import vector

TOKENS = 1024
"""Of a row that are shown."""
_NAMED = ("token", "_ids", "input_id", "word_id")
_WIDE = ("int32", "int64", "uint32", "uint64")  # what ids have; sound and bytes have narrower ones
_LEAST = -100  # below 0 stands what is left out of a loss


class TokensRenderer(Renderer):
    """Ids, with the text of each where the datapoint has as many tokens."""

    form = "tokens"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, list):
            whole = len(value) > 1 and all(type(v) is int for v in value)
            return whole and min(value) >= _LEAST and (about.section != "debugger" or about.named(*_NAMED))
        if not isinstance(value, Numbers) or not value.whole or value.dtype == "bool":
            return False
        row = vector(value)
        if row is None or row.size < 2:
            return False
        if about.named(*_NAMED):
            return True
        low = statistics(row).min
        return about.section != "debugger" and value.dtype in _WIDE and low is not None and low >= _LEAST

    def body(self, value: Any, about: About) -> Body:
        row = value.reshaped(-1).take(slice(TOKENS)).tolist() if isinstance(value, Numbers) else value[:TOKENS]
        of = value.size if isinstance(value, Numbers) else len(value)
        texts = about.tokens if about.tokens is not None and len(about.tokens) == of else None
        note = None if len(row) == of else f"the first {len(row):,} of {of:,}"
        return {
            "values": row,
            "tokens": list(texts[: len(row)]) if texts is not None else None,
            "shown": len(row),
            "of": of,
            "note": note,
        }
