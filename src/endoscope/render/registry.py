"""What draws a value: renderers, asked in order, and those that were registered for a debugger before all others.

A renderer gives one of a few forms, which the page knows how to show. One that raises becomes a `problem`, and the rest
of the datapoint is drawn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.render.numbers import Array, Numbers, is_numbers
from endoscope.render.pictures import Picture

Form = Literal[
    "image",
    "channels",
    "mask",
    "attention",
    "heatmap",
    "line",
    "histogram",
    "tokens",
    "table",
    "text",
    "scalar",
    "problem",
]
PICTURES = ("image", "channels", "mask", "attention", "heatmap")
"""Forms that have a picture."""
Body = dict[str, Any]


def _no_image() -> Array | None:
    return None


@dataclass(frozen=True, slots=True)
class About:
    """What a renderer may know of a value besides the value."""

    name: str = ""
    """Its key, such as ``feature_map``; inner keys behind slashes."""
    section: str = "debugger"
    debugger: str | None = None
    class_names: Sequence[str] | None = None
    tokens: Sequence[str] | None = None
    classification: bool = False
    """Whether it holds one number for each class."""
    image: Callable[[], Array | None] = field(default=_no_image)
    """The datapoint's input as ``(height, width, 3)`` bytes, if it is an image; read when called."""

    def named(self, *words: str) -> bool:
        """Whether one of the words stands in the value's or the debugger's name."""
        text = f"{self.debugger or ''}/{self.name}".lower()
        return any(word in text for word in words)


@dataclass(frozen=True, slots=True)
class View:
    """Which picture of a value is wanted."""

    page: int = 0
    zoom: int | None = None
    overlay: bool = False
    span: tuple[float, float] | None = None
    """The values at the ends of the colour map; those of the value itself when left out."""


class Renderer(ABC):
    """Draws values of one kind in one form.

    >>> class Spectrum(Renderer):
    ...     form = "line"
    ...     def body(self, value, about):
    ...         power = value["power"].tolist()
    ...         return {"series": [{"name": "power", "values": power}], "shown": len(power), "of": len(power)}
    >>> register("spectrum", Spectrum())

    ``body`` gives what docs/viewer-api.md says for the form, without ``src``. A form with a picture has ``picture``.
    """

    form: ClassVar[Form]

    def fits(self, value: Any, about: About) -> bool:
        """Whether it can draw this value; built-in renderers are asked in order."""
        return True

    @abstractmethod
    def body(self, value: Any, about: About) -> Body: ...

    def picture(self, value: Any, about: About, view: View) -> Picture:
        raise NotImplementedError(f"{type(self).__name__} has the form {self.form!r} and no picture()")


_registered: dict[str, Renderer] = {}


def register(name: str, renderer: object) -> None:
    """Let ``renderer`` draw what the debugger ``name`` gave, or with ``name/key`` one value of it.

    It is given the value as it was captured. Register before the viewer starts, or before a notebook displays.
    """
    if not isinstance(renderer, Renderer):
        given = f"the class {renderer.__name__}" if isinstance(renderer, type) else type(renderer).__name__
        raise ConfigError(f"register({name!r}, ...) was given {given}; it needs an object of a subclass of Renderer")
    if getattr(renderer, "form", None) not in get_args(Form):
        raise ConfigError(f"{type(renderer).__name__}.form must be one of {', '.join(map(repr, get_args(Form)))}")
    _registered[name] = renderer


def unregister(name: str) -> None:
    """Undo `register`."""
    if name not in _registered:
        raise ConfigError(f"no renderer is registered for {name!r}; registered are {sorted(_registered)}")
    del _registered[name]


def registered(debugger: str | None, name: str) -> Renderer | None:
    """The renderer that was registered for a debugger (``name`` is empty) or for one of its values."""
    return _registered.get(f"{debugger}/{name}" if name else f"{debugger}") if debugger is not None else None


class NotDrawn(EndoscopeError, ValueError):
    """A value, or its picture, cannot be drawn; the text says why."""


@contextmanager
def _drawing(what: str, *, told: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """The one place where an error of a renderer ends; the text of those in ``told`` says enough by itself.

    A renderer may be the user's own and raise anything. It must not take the rest of the datapoint with it.
    """
    try:
        with np.errstate(all="ignore"):  # values of any size are to be seen, not to be warned of
            yield
    except told as e:
        raise NotDrawn(str(e) or describe(e)) from e
    except Exception as e:
        raise NotDrawn(f"{what} could not be drawn: {describe(e)}") from e


@dataclass(frozen=True, slots=True)
class Drawn:
    """How a value is drawn."""

    form: Form
    body: Body
    renderer: Renderer
    value: Any
    """What the renderer is given."""
    about: About
    numbers: Numbers | None
    """The value, when it is a tensor or an array that can be laid out."""

    def picture(self, view: View) -> Picture:
        """One of its pictures; `NotDrawn` says why there is none."""
        with _drawing("this picture", told=(ValueError, MemoryError)):
            return _picture(self.renderer, self.value, self.about, view)


def draw(value: Any, about: About) -> Drawn:
    """Choose the renderer of a value and let it draw; what goes wrong is drawn as a problem."""
    numbers = None
    try:
        with _drawing("this value"):
            numbers = Numbers(value) if is_numbers(value) else None
            chosen, given = choose(value, about, numbers)
            body = chosen.body(given, about)
            check_body(chosen.form, body)
            return Drawn(chosen.form, body, chosen, given, about, numbers)
    except NotDrawn as e:
        return Drawn("problem", {"message": str(e)}, Problem(), value, about, numbers)


def choose(value: Any, about: About, numbers: Numbers | None) -> tuple[Renderer, Any]:
    """The renderer of a value, and what it is to be given; ``numbers`` is the value if it is a tensor or an array."""
    own = registered(about.debugger, about.name)
    if own is not None:
        return own, value
    from endoscope.render.builtin import RENDERERS

    given = value if numbers is None else numbers
    return next(renderer for renderer in RENDERERS if renderer.fits(given, about)), given


def picture(value: Any, about: About, view: View) -> Picture:
    """The picture of a value, without its body; `NotDrawn` says why there is none."""
    with _drawing("this picture", told=(ValueError, MemoryError)):
        chosen, given = choose(value, about, Numbers(value) if is_numbers(value) else None)
        return _picture(chosen, given, about, view)


def _picture(renderer: Renderer, given: Any, about: About, view: View) -> Picture:
    if renderer.form not in PICTURES:
        raise ValueError(f"a value drawn as {renderer.form} has no picture")
    made = renderer.picture(given, about, view)
    if not isinstance(made, Picture):
        raise TypeError(f"{type(renderer).__name__}.picture() gave {type(made).__name__}, expected a Picture")
    return made


_Holds = dict[str, type | tuple[type, ...]]
_SHEET: _Holds = {"columns": int, "rows": int, "tile": (list, tuple), "shown": int, "of": int}
_HOLDS: dict[str, _Holds] = {
    "image": {"width": int, "height": int},
    "channels": _SHEET,
    "attention": _SHEET,
    "mask": {"width": int, "height": int, "classes": (list, tuple)},
    "heatmap": {"width": int, "height": int},
    "line": {"series": (list, tuple)},
    "histogram": {"edges": (list, tuple), "counts": (list, tuple)},
    "table": {"columns": (list, tuple), "rows": (list, tuple)},
    "tokens": {"values": (list, tuple)},
    "text": {"text": str},
    "scalar": {"value": object},
    "problem": {"message": str},
}


def check_body(form: Form, body: Any) -> None:
    """TypeError, KeyError or ValueError when a page could not show what a renderer gave."""
    if not isinstance(body, dict):
        raise TypeError(f"body() gave {type(body).__name__}, expected a dict")
    for name, wanted in _HOLDS.get(form, {}).items():
        if name not in body:
            raise ValueError(f"the body of the form {form!r} lacks {name!r}")
        if not isinstance(body[name], wanted):
            raise TypeError(f"{name!r} in the body of the form {form!r} is {type(body[name]).__name__}")
    if form == "line" and not all(isinstance(one, dict) and _is_list(one.get("values")) for one in body["series"]):
        raise ValueError("each one of 'series' needs a list 'values'")
    if form in ("channels", "attention") and not _is_sheet(**{name: body[name] for name in _SHEET}):
        raise ValueError("'columns', 'rows', 'shown' and 'of' need to be 1 or more, and 'tile' a width and a height")
    if form == "table" and not all(map(_is_list, body["rows"])):
        raise ValueError("each one of 'rows' needs to be a list")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_sheet(tile: Sequence[Any], **counts: int) -> bool:
    sides = len(tile) == 2 and all(isinstance(side, int) for side in tile)
    return sides and min(*tile, *counts.values()) >= 1


class Problem(Renderer):
    """Says why a value is not drawn."""

    form = "problem"

    def body(self, value: Any, about: About) -> Body:
        return {"message": str(value)[:1000]}


def describe(e: BaseException) -> str:
    """An error in one short line, without its values."""
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:200]}" if text else type(e).__name__
