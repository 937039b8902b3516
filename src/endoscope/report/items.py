"""Shown: one item as every static view shows it, before it becomes HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from endoscope.render.numbers import statistics
from endoscope.render.pictures import Picture
from endoscope.render.plain import cell, value_text
from endoscope.render.registry import Drawn, NotDrawn, draw
from endoscope.render.renderer import PICTURES, About, Body, Form, View
from endoscope.runs import Epoch
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import Item


@dataclass(frozen=True, slots=True)
class Shown:
    """What a view shows of a value."""

    facts: list[str]
    """Its name, and the shape, dtype and statistics of an array."""
    form: Form
    body: Body
    picture: Picture | None = None
    """For a form that has one."""
    over: Picture | None = None
    """The same over the datapoint's input, if it can be drawn over it."""
    alt: str = ""
    """What the picture shows, for screen readers: name and shape."""


def shown(item: Item, about: About, *, no_picture: str | None = None) -> Shown:
    """An item drawn. ``no_picture`` gives the reason if pictures are left out. An error is drawn as a problem."""
    drawn = draw(item.value, about)
    facts = [item.name, *_facts(drawn)]
    if drawn.form not in PICTURES:
        return Shown(facts, drawn.form, drawn.body)
    if no_picture is not None:
        return Shown(facts, "problem", {"message": no_picture})
    try:
        alone = drawn.picture(View())
        over = drawn.picture(View(overlay=True)) if drawn.body.get("overlay") else None
    except NotDrawn as e:
        return Shown(facts, "problem", {"message": str(e)})
    alt = ", ".join(facts[:2]) if drawn.numbers is not None else item.name
    return Shown(facts, drawn.form, drawn.body, alone, over, alt)


def _facts(drawn: Drawn) -> Iterator[str]:
    """Shape, dtype and statistics of an array as text; nothing for any other value."""
    x: Any = drawn.numbers
    if x is None:
        return
    stats = statistics(x)
    yield "×".join(map(str, x.shape)) or "scalar"
    yield x.dtype
    if stats.min is not None and stats.max is not None:
        numbers = {"min": stats.min, "mean": stats.mean, "max": stats.max, "std": stats.std}
        named = [f"{name} {value_text(value)}" for name, value in numbers.items() if value is not None]
        yield f"{', '.join(named)} of {stats.over}"
    yield f"{stats.nan:,} NaN, {stats.inf:,} infinite"


def epoch_text(epoch: Epoch) -> str:
    return "the evaluation" if epoch.number is None else f"epoch {epoch.number}"


def prediction_text(datapoint: Datapoint) -> str:
    """The predicted class and its probability, or a dash."""
    prediction = datapoint.prediction
    if prediction is None:
        return "–"
    return f"{cell(datapoint.class_text(prediction.index))} ({prediction.probability:.1%})"
