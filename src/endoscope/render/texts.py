"""Text: scalars, long texts, and a few words for a value that has no other form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from endoscope.render.numbers import Numbers
from endoscope.render.plain import CELL, cell, is_scalar, keys_of, members, type_of
from endoscope.render.renderer import About, Body, Renderer
from endoscope.values import Opaque

TEXT = 10_000
"""Characters of a text."""
_CLASS_WORDS = ("class", "label", "target", "pred")


class ScalarRenderer(Renderer):
    """One number, truth value, date or short name; with the name of the class if it is the index of one."""

    form = "scalar"

    def fits(self, value: Any, about: About) -> bool:
        if isinstance(value, Numbers):
            return value.size == 1
        if isinstance(value, str):
            return len(value) <= CELL and "\n" not in value
        return is_scalar(value) and not isinstance(value, (bytes, Opaque))

    def body(self, value: Any, about: About) -> Body:
        scalar = value.reshaped(-1).take().tolist()[0] if isinstance(value, Numbers) else value
        is_class = type(scalar) is int and (about.section == "labels" or about.named(*_CLASS_WORDS))
        return {"value": cell(scalar), "name": about.class_name(scalar) if is_class else None}


class TextRenderer(Renderer):
    """A text, or the start of a long one."""

    form = "text"

    def fits(self, value: Any, about: About) -> bool:
        return isinstance(value, (str, bytes, Opaque))

    def body(self, value: Any, about: About) -> Body:
        content, most, unit = value.text if isinstance(value, Opaque) else value, TEXT, "characters"
        if isinstance(content, bytes):
            most, unit = TEXT // 4, "bytes"
        shown, of = content[:most], len(content)
        notes = [] if len(shown) == of else [f"the first {len(shown):,} of {of:,} {unit}"]
        notes += ["only the start of its repr was stored"] if isinstance(value, Opaque) else []
        text = shown.hex(" ") if isinstance(shown, bytes) else shown
        return {"text": text, "shown": len(shown), "of": of, "note": "; ".join(notes) or None}


class AnythingRenderer(Renderer):
    """Describes a value that cannot be drawn, such as an empty tensor or an empty list."""

    form = "text"

    def body(self, value: Any, about: About) -> Body:
        if isinstance(value, (Numbers, np.ndarray)):
            shape = " × ".join(map(str, value.shape))
            text = f"empty, of shape {shape}" if not math.prod(value.shape) else f"an array of text of shape {shape}"
        elif members(value) is not None:
            text = f"an empty {type_of(value)}" if not keys_of(value) else f"a {type_of(value)}"
        else:
            text = f"a value of type {type_of(value)}, which cannot be drawn"
        return {"text": text, "shown": len(text), "of": len(text), "note": None}
