"""Shown: one item as notebooks and exported pages show it, before it becomes markup."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from endoscope.render.numbers import statistics
from endoscope.render.pictures import Picture
from endoscope.render.plain import jsonable
from endoscope.render.registry import PICTURES, About, Body, Drawn, Form, NotDrawn, View, draw
from endoscope.runs.datapoint_values import Found


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to see of a value."""

    said: list[str]
    """Its name, and shape, dtype and numbers of an array."""
    form: Form
    body: Body
    picture: Picture | None = None
    """Of a form that has one, where it was wanted and could be drawn."""
    over: Picture | None = None
    """The same over the datapoint's input, where it lies over one."""
    alt: str = ""
    """What the picture is of, for those who cannot see it: name and shape."""

    @property
    def pictures(self) -> list[tuple[str, Picture]]:
        """Each with its caption, which is empty where there is only one."""
        if self.picture is None:
            return []
        if self.over is None:
            return [("", self.picture)]
        return [("alone", self.picture), ("over the input", self.over)]


def value_text(value: Any) -> str:
    """A number as the viewer shows it, with a minus sign that is no hyphen; another value as its text. Not escaped."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value + 0.0:.4g}".replace("-", "−")  # of both zeros the one without a sign


def shown(found: Found, about: About, *, no_picture: str | None = None) -> Shown:
    """An item drawn; ``no_picture`` says why pictures are left out. What cannot be drawn is a problem that says so."""
    drawn = draw(found.value, about)
    said = [found.name, *_facts(drawn)]
    if drawn.form not in PICTURES:
        return Shown(said, drawn.form, jsonable(drawn.body))
    if no_picture is not None:
        return Shown(said, "problem", {"message": no_picture})
    try:
        alone = drawn.picture(View())
        over = drawn.picture(View(overlay=True)) if drawn.body.get("overlay") else None
    except NotDrawn as e:
        return Shown(said, "problem", {"message": str(e)})
    alt = ", ".join(said[:2]) if drawn.numbers is not None else found.name
    return Shown(said, drawn.form, jsonable(drawn.body), alone, over, alt)


def _facts(drawn: Drawn) -> Iterator[str]:
    """Shape, dtype and numbers of an array, as text; nothing of another value."""
    x: Any = drawn.numbers
    if x is None:
        return
    found = statistics(x)
    yield "×".join(map(str, x.shape)) or "scalar"
    yield x.dtype
    if found.min is not None and found.max is not None:
        numbers = {"min": found.min, "mean": found.mean, "max": found.max, "std": found.std}
        said = [f"{name} {value_text(value)}" for name, value in numbers.items() if value is not None]
        yield f"{', '.join(said)} of {found.over}"
    yield f"{found.nan:,} NaN, {found.inf:,} infinite"
