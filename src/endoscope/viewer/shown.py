"""Shown: one item as notebooks and exported pages show it, before it becomes markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from endoscope.viewer.render.numbers import statistics
from endoscope.viewer.render.pictures import Picture
from endoscope.viewer.render.plain import jsonable
from endoscope.viewer.render.registry import PICTURES, About, Body, Drawn, Form, NotDrawn, View, draw
from endoscope.viewer.values import Found


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to see of a value."""

    said: list[str]
    """Its name, and shape, dtype and numbers of an array."""
    form: Form
    body: Body
    picture: Picture | None
    """Of a form that has one, where it was wanted and could be drawn."""


def shown(found: Found, about: About, *, no_picture: str | None = None) -> Shown:
    """An item drawn; ``no_picture`` says why pictures are left out. What cannot be drawn is a problem that says so."""
    drawn = draw(found.value, about)
    said = [found.name, *_facts(drawn)]
    if drawn.form not in PICTURES:
        return Shown(said, drawn.form, jsonable(drawn.body), None)
    if no_picture is not None:
        return Shown(said, "problem", {"message": no_picture}, None)
    try:
        made = drawn.picture(View(overlay=bool(drawn.body.get("overlay"))))
    except NotDrawn as e:
        return Shown(said, "problem", {"message": str(e)}, None)
    return Shown(said, drawn.form, jsonable(drawn.body), made)


def _facts(drawn: Drawn) -> Iterator[str]:
    """Shape, dtype and numbers of an array, as text; nothing of another value."""
    x: Any = drawn.numbers
    if x is None:
        return
    found = statistics(x)
    yield "×".join(map(str, x.shape)) or "scalar"
    yield x.dtype
    if found.min is not None and found.max is not None:
        yield f"min {found.min:.4g}, mean {found.mean:.4g}, max {found.max:.4g}, std {found.std:.4g} of {found.over}"
    yield f"{found.nan:,} NaN, {found.inf:,} infinite"
