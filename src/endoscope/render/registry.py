"""Chooses the renderer of a value, a registered one before the built-in ones, and lets it draw.

A renderer that raises, or returns what no page can show, becomes a `problem`; the rest of the datapoint is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.render.attention import AttentionRenderer
from endoscope.render.curves import HistogramRenderer, LineRenderer
from endoscope.render.fields import ChannelsRenderer, HeatmapRenderer, MatrixRenderer
from endoscope.render.images import ImageRenderer
from endoscope.render.masks import MaskRenderer
from endoscope.render.numbers import Numbers, is_numbers
from endoscope.render.pictures import Picture
from endoscope.render.renderer import PICTURES, About, Body, Form, Renderer, View
from endoscope.render.tables import ClassesRenderer, TableRenderer
from endoscope.render.texts import AnythingRenderer, ScalarRenderer, TextRenderer
from endoscope.render.tokens import TokensRenderer

_BUILT_IN: tuple[Renderer, ...] = (
    ScalarRenderer(),
    ClassesRenderer(),
    AttentionRenderer(),
    HeatmapRenderer(),
    MaskRenderer(),
    ImageRenderer(),
    ChannelsRenderer(),
    MatrixRenderer(),
    TokensRenderer(),
    LineRenderer(),
    HistogramRenderer(),
    TableRenderer(),
    TextRenderer(),
    AnythingRenderer(),
)
"""The first one that fits draws the value."""
_registered: dict[str, Renderer] = {}


def register(name: str, renderer: object) -> None:
    """Let ``renderer`` draw what the debugger ``name`` returned, or one value of it with ``name/key``.

    It is given the value as it was captured. Register before the viewer starts, or before a notebook displays.
    """
    if not isinstance(renderer, Renderer):
        kind = f"the class {renderer.__name__}" if isinstance(renderer, type) else type(renderer).__name__
        raise ConfigError(f"register({name!r}, ...) was given {kind}; it needs an object of a subclass of Renderer")
    if getattr(renderer, "form", None) not in get_args(Form):
        raise ConfigError(f"{type(renderer).__name__}.form must be one of {', '.join(map(repr, get_args(Form)))}")
    _registered[name] = renderer


def unregister(name: str) -> None:
    """Undo `register`."""
    if name not in _registered:
        raise ConfigError(f"no renderer is registered for {name!r}; registered are {sorted(_registered)}")
    del _registered[name]


def registered(debugger: str | None, name: str) -> Renderer | None:
    """The renderer registered for a debugger (``name`` is empty) or for one of its values."""
    return _registered.get(f"{debugger}/{name}" if name else f"{debugger}") if debugger is not None else None


class NotDrawn(EndoscopeError, ValueError):
    """A value, or its picture, cannot be drawn; the text gives the reason."""


@contextmanager
def _drawing(what: str, *, clear: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns every error of a renderer into `NotDrawn`. The text of a ``clear`` error is shown as it is.

    A renderer may be the user's own and raise anything. The rest of the datapoint must still be drawn.
    """
    try:
        with np.errstate(all="ignore"):  # a debugging tool shows extreme values, and does not warn about them
            yield
    except clear as e:
        raise NotDrawn(str(e) or describe(e)) from e
    except Exception as e:
        raise NotDrawn(f"{what} could not be drawn: {describe(e)}") from e


@dataclass(frozen=True, slots=True)
class Drawn:
    """How a value is drawn."""

    form: Form
    body: Body
    numbers: Numbers | None
    """The value as numbers, if it is a tensor or an array whose values can be read."""
    renderer: Renderer | None
    """None for a value that could not be drawn."""
    argument: Any
    about: About

    def picture(self, view: View) -> Picture:
        """One of its pictures, or `NotDrawn` with the reason."""
        if self.renderer is None:
            raise NotDrawn(self.body["message"])
        return _picture(self.renderer, self.argument, self.about, view)


def draw(value: Any, about: About) -> Drawn:
    """Choose the renderer of a value and let it draw; an error is drawn as a problem."""
    numbers = None
    try:
        with _drawing("this value"):
            numbers = Numbers(value) if is_numbers(value) else None
            renderer, argument = _choose(value, numbers, about)
            body = renderer.body(argument, about)
            _check_body(renderer.form, body)
            return Drawn(renderer.form, body, numbers, renderer, argument, about)
    except NotDrawn as e:
        return Drawn("problem", {"message": str(e)}, numbers, None, value, about)


def picture(value: Any, about: About, view: View) -> Picture:
    """The picture of a value, or `NotDrawn` with the reason. Does not compute the body."""
    with _drawing("this value"):
        renderer, argument = _choose(value, Numbers(value) if is_numbers(value) else None, about)
    return _picture(renderer, argument, about, view)


def _picture(renderer: Renderer, argument: Any, about: About, view: View) -> Picture:
    with _drawing("this picture", clear=(ValueError, MemoryError)):
        if renderer.form not in PICTURES:
            raise ValueError(f"a value drawn as {renderer.form} has no picture")
        result: Any = renderer.picture(argument, about, view)
        if not isinstance(result, Picture):
            name = type(renderer).__name__
            raise TypeError(f"{name}.picture() returned {type(result).__name__}, expected a Picture")
        return result


def _choose(value: Any, numbers: Numbers | None, about: About) -> tuple[Renderer, Any]:
    """The renderer of a value, and the value as it expects it: tensors are `Numbers` for the built-in ones."""
    renderer = registered(about.debugger, about.name)
    if renderer is not None:
        return renderer, value
    argument = value if numbers is None else numbers
    return next(renderer for renderer in _BUILT_IN if renderer.fits(argument, about)), argument


_LIST = (list, tuple)
_SHEET: Body = {"columns": int, "rows": int, "tile": _LIST, "shown": int, "of": int}
_REQUIRED: dict[Form, Body] = {
    "image": {"width": int, "height": int},
    "channels": _SHEET,
    "attention": _SHEET,
    "mask": {"width": int, "height": int, "classes": _LIST},
    "heatmap": {"width": int, "height": int},
    "line": {"series": _LIST},
    "histogram": {"edges": _LIST, "counts": _LIST},
    "table": {"columns": _LIST, "rows": _LIST},
    "tokens": {"values": _LIST},
    "text": {"text": str},
    "scalar": {"value": object},
    "problem": {"message": str},
}
"""For each form, the keys that its body must have and their types."""
_OPTIONAL: Body = {"shown": Integral, "of": Integral, "range": _LIST, "tokens": _LIST, "legend": _LIST, "note": str}
"""Keys that a body of any form may have. None is allowed, too."""


def _is_sheet(body: Body) -> bool:
    sides, counts = body["tile"], [body[name] for name in _SHEET if name != "tile"]
    return len(sides) == 2 and all(isinstance(side, int) for side in sides) and min(*sides, *counts) >= 1


_Rule = tuple[Callable[[Body], bool], str]
_SHEET_RULE: _Rule = (
    _is_sheet,
    "'columns', 'rows', 'shown' and 'of' must be 1 or more, and 'tile' must hold a width and a height",
)
_RANGE_RULE: _Rule = (
    lambda body: body.get("range") is None or [isinstance(end, Real) for end in body["range"]] == [True, True],
    "'range' must hold two numbers",
)
_RULES: dict[Form, list[_Rule]] = {
    "line": [
        (
            lambda body: all(isinstance(one, dict) and isinstance(one.get("values"), _LIST) for one in body["series"]),
            "each item of 'series' must have a list 'values'",
        )
    ],
    "table": [(lambda body: all(isinstance(row, _LIST) for row in body["rows"]), "each item of 'rows' must be a list")],
    "histogram": [(lambda body: all(isinstance(n, Real) for n in body["counts"]), "'counts' must be numbers")],
    "channels": [_SHEET_RULE],
    "attention": [_SHEET_RULE],
}


def _check_body(form: Form, body: Any) -> None:
    """TypeError or ValueError when a page could not show what a renderer returned."""
    if not isinstance(body, dict):
        raise TypeError(f"body() returned {type(body).__name__}, expected a dict")
    for name in _REQUIRED[form]:
        if name not in body:
            raise ValueError(f"the body of the form {form!r} lacks {name!r}")
    optional = {name: expected for name, expected in _OPTIONAL.items() if body.get(name) is not None}
    for name, expected in {**optional, **_REQUIRED[form]}.items():
        if not isinstance(body[name], expected):
            raise TypeError(f"{name!r} in the body of the form {form!r} is {type(body[name]).__name__}")
    for holds, message in (_RANGE_RULE, *_RULES.get(form, ())):
        if not holds(body):
            raise ValueError(message)


def describe(e: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:200]}" if text else type(e).__name__
