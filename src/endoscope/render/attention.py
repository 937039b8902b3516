"""Attention: one map of queries and keys per head, with the tokens where the datapoint has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from endoscope.render import sheets
from endoscope.render.numbers import Numbers
from endoscope.render.pictures import Picture
from endoscope.render.renderer import About, Body, Renderer, View
from endoscope.render.shapes import Maps, unbatched
from endoscope.render.sheets import Sheet

_MOST_TOKENS = 512
_TILE = 160  # pixels of a head's longer side: larger than other tiles, because its cells are read one by one


class AttentionRenderer(Renderer):
    """``(heads, queries, keys)``, or without heads. Attention has no value below 0."""

    form = "attention"

    def fits(self, value: Any, about: About) -> bool:
        if not isinstance(value, Numbers) or value.is_integral:
            return False
        heads = _heads(value)
        if heads is None or sheets.span_of(heads.x)[0][0] < 0:
            return False
        return about.named("attention", "attn") or _is_distribution(heads.x)

    def body(self, value: Any, about: About) -> Body:
        heads = _heads(value)
        assert heads is not None
        queries, keys = heads.x.shape[-2:]
        body = sheets.tiles_body(heads, sheet_of(heads), "heads")
        tokens = list(about.tokens) if about.tokens is not None and len(about.tokens) in (queries, keys) else None
        of_tokens = len(tokens or ())
        notes = [body["note"]] if body["note"] else []
        notes.append(f"{queries} queries (rows) × {keys} keys (columns)")
        if tokens is not None and of_tokens > _MOST_TOKENS:
            notes.append(f"{_MOST_TOKENS} of {of_tokens:,} tokens")
            tokens = tokens[:_MOST_TOKENS]
        sides = {"heads": heads.count, "queries": queries, "keys": keys, "of_tokens": of_tokens}
        return {**body, **sides, "tokens": tokens, "note": "; ".join(notes)}

    def picture(self, value: Any, about: About, view: View) -> Picture:
        heads = _heads(value)
        assert heads is not None
        return sheets.tiles_picture(heads, sheet_of(heads), view)


def sheet_of(heads: Maps) -> Sheet:
    """How heads are laid out."""
    return Sheet.of(heads, tile=_TILE, most=256)


def _heads(x: Numbers) -> Maps | None:
    inner = unbatched(x)
    if len(inner.shape) == 2:
        inner = inner.reshaped(1, *inner.shape)
    if len(inner.shape) not in (3, 4) or min(inner.shape[-2:]) < 2 or not inner.size:
        return None
    note = f"{inner.shape[0]} × {inner.shape[1]} heads" if len(inner.shape) == 4 else None
    return Maps(inner.reshaped(-1, *inner.shape[-2:]), note)


def _is_distribution(x: Numbers) -> bool:
    """Whether every row of square maps adds up to 1. Only the first two maps are checked."""
    if x.shape[-1] != x.shape[-2] or x.shape[-1] > 4096:
        return False
    part = x.take(np.s_[:2]).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((np.abs(part.sum(-1) - 1) < 2e-2).all())
