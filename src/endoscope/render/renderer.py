"""Renderer: the interface of everything that draws a value, and what a renderer knows about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from endoscope.render.numbers import Array
from endoscope.render.pictures import Picture

Form = Literal[
    "image", "channels", "mask", "attention", "heatmap", "line", "histogram", "tokens", "table", "text", "scalar",
    "problem",
]  # fmt: skip
PICTURES = ("image", "channels", "mask", "attention", "heatmap")
"""Forms that have a picture."""
Body = dict[str, Any]


def _no_image() -> Array | None:
    return None


@dataclass(frozen=True, slots=True)
class About:
    """What a renderer may know of a value in addition to the value."""

    name: str = ""
    """Its key, such as ``feature_map``; nested keys are joined by slashes."""
    section: str = "debugger"
    debugger: str | None = None
    class_names: Sequence[str] | None = None
    tokens: Sequence[str] | None = None
    classification: bool = False
    """Whether it holds one number per class."""
    image: Callable[[], Array | None] = field(default=_no_image)
    """The datapoint's input as ``(height, width, 3)`` bytes, if it is an image; read when called."""

    def named(self, *words: str) -> bool:
        """Whether the name of the value or of the debugger contains one of the words."""
        text = f"{self.debugger or ''}/{self.name}".lower()
        return any(word in text for word in words)

    def class_name(self, index: int) -> str | None:
        names = self.class_names
        return names[index] if names is not None and 0 <= index < len(names) else None


@dataclass(frozen=True, slots=True)
class View:
    """Which picture of a value to draw."""

    page: int = 0
    zoom: int | None = None
    overlay: bool = False
    span: tuple[float, float] | None = None
    """The values at the ends of the colour map; by default the smallest and the largest."""


class Renderer(ABC):
    """Draws values of one kind in one form.

    >>> class Spectrum(Renderer):
    ...     form = "line"
    ...     def body(self, value, about):
    ...         power = value["power"].tolist()
    ...         return {"series": [{"name": "power", "values": power}], "shown": len(power), "of": len(power)}
    >>> register("spectrum", Spectrum())

    ``body`` returns what docs/viewer-api.md lists for the form, without ``src``. A form with a picture also needs
    ``picture``.
    """

    form: ClassVar[Form]

    def fits(self, value: Any, about: About) -> bool:
        """Whether it can draw this value. The built-in renderers are asked in order."""
        return True

    @abstractmethod
    def body(self, value: Any, about: About) -> Body: ...

    def picture(self, value: Any, about: About, view: View) -> Picture:
        raise NotImplementedError(f"{type(self).__name__} has the form {self.form!r} and no picture()")
