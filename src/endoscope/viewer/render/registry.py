"""What draws a value: renderers, asked in order, and those that were registered for a debugger before all others.

A renderer gives one of a few forms, which the page knows how to show. One that raises becomes a `problem`, and the rest
of the datapoint is drawn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from endoscope.errors import ConfigError
from endoscope.viewer.render.numbers import Array, Numbers, is_numbers
from endoscope.viewer.render.pictures import Picture

Form = Literal[
    "image", "channels", "mask", "attention", "heatmap", "line", "histogram", "table", "text", "scalar", "problem"
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """How a value is drawn."""

    form: Form
    body: Body
    renderer: Renderer
    value: Any
    """What the renderer is given."""


def draw(value: Any, about: About) -> Drawn:
    """Choose the renderer of a value and let it draw; what goes wrong is drawn as a problem."""
    try:
        with np.errstate(all="ignore"):  # values of any size are to be seen, not to be warned of
            chosen, given = choose(value, about)
            return Drawn(chosen.form, chosen.body(given, about), chosen, given)
    except Exception as e:  # noqa: BLE001  # a broken renderer or an odd value must not take the datapoint with it
        return Drawn("problem", {"message": f"this value could not be drawn: {describe(e)}"}, Problem(), value)


def choose(value: Any, about: About) -> tuple[Renderer, Any]:
    """The renderer of a value, and what it is to be given."""
    own = registered(about.debugger, about.name)
    if own is not None:
        return own, value
    from endoscope.viewer.render.builtin import RENDERERS

    given = Numbers(value) if is_numbers(value) else value
    return next(renderer for renderer in RENDERERS if renderer.fits(given, about)), given


def picture(value: Any, about: About, view: View) -> Picture:
    """The picture of a value; ValueError says why there is none."""
    with np.errstate(all="ignore"):
        chosen, given = choose(value, about)
        if chosen.form not in PICTURES:
            raise ValueError(f"a value drawn as {chosen.form} has no picture")
        return chosen.picture(given, about, view)


class Problem(Renderer):
    """Says why a value is not drawn."""

    form = "problem"

    def body(self, value: Any, about: About) -> Body:
        return {"message": str(value)[:1000]}


def describe(e: BaseException) -> str:
    """An error in one short line, without its values."""
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:200]}" if text else type(e).__name__
