"""Scalars, texts, and a few words for everything that has no other form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from endoscope.render.images import class_name
from endoscope.render.numbers import Numbers
from endoscope.render.plain import CELL, cell, is_scalar, keys_of, members, type_of
from endoscope.render.registry import About, Body, Renderer
from endoscope.values import Opaque

TEXT = 10_000
"""Characters of a text."""
_CLASS_WORDS = ("class", "label", "target", "pred")


class ScalarRenderer(Renderer):
    """One number, truth value, date, short name; the name of the class where it is one."""

    form = "scalar"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, Numbers):
            return value.size == 1
        return (
            is_scalar(value)
            and not isinstance(value, (bytes, Opaque))
            and not (isinstance(value, str) and (len(value) > CELL or "\n" in value))
        )

    def body(self, value: Any, about: About) -> Body:
        one = value.reshaped(-1).take().tolist()[0] if isinstance(value, Numbers) else value
        whole = (isinstance(value, Numbers) and value.whole) or type(one) is int
        is_class = whole and type(one) is int and (about.section == "labels" or about.named(*_CLASS_WORDS))
        return {"value": cell(one), "name": class_name(one, about.class_names) if is_class else None}


class TextRenderer(Renderer):
    """Text as it is, its start when it is long."""

    form = "text"

    def fits(self, value: Any, about: About) -> bool:
        return isinstance(value, (str, bytes, Opaque))

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, bytes):
            text, unit = value[: TEXT // 4].hex(" "), "bytes"
            shown = min(len(value), TEXT // 4)
            of = len(value)
        else:
            whole = value.text if isinstance(value, Opaque) else value
            text, unit, shown, of = whole[:TEXT], "characters", min(len(whole), TEXT), len(whole)
        notes = [] if shown == of else [f"the first {shown:,} of {of:,} {unit}"]
        notes += ["of this type only the start of its repr was kept"] if isinstance(value, Opaque) else []
        return {"text": text, "shown": shown, "of": of, "note": "; ".join(notes) or None}


class AnythingRenderer(Renderer):
    """Says what a value is that cannot be seen: an empty tensor, an empty list."""

    form = "text"

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, (Numbers, np.ndarray)):
            shape = " × ".join(map(str, value.shape))
            text = f"empty, of shape {shape}" if not math.prod(value.shape) else f"an array of text of shape {shape}"
        elif members(value) is not None:
            text = f"an empty {type_of(value)}" if not keys_of(value) else f"a {type_of(value)}"
        else:
            text = f"a value of type {type_of(value)}, which has no form of its own"
        return {"text": text, "shown": len(text), "of": len(text), "note": None}
