"""Reading the fields of a JSON object with their types. Invalid fields are reported and left out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

Direction = Literal["higher", "lower"]
"""Which values of a score are better."""

T = TypeVar("T")
V = TypeVar("V")


class Fields:
    """The fields of an object, and the problems with those that were taken.

    >>> fields = Fields({"epoch": 4, "step": "many"})
    >>> fields.take("epoch", count), fields.take("step", count)
    (4, None)
    >>> fields.problems
    ["step is 'many'; expected a whole number, 0 or more"]
    """

    def __init__(self, content: dict[str, Any], *, within: str = "", problems: list[str] | None = None) -> None:
        self.content = content
        self.problems = [] if problems is None else problems
        self._within = within

    def take(self, key: str, read: Callable[[Any], T]) -> T | None:
        """One field; None if it is missing, null or invalid."""
        value = self.content.get(key)
        if value is None:
            return None
        try:
            return read(value)
        except (ValueError, OverflowError) as e:
            self.problems.append(f"{self._within}{key} is {shown(value)}; {e}")
            return None

    def table(self, key: str, read: Callable[[Any], V]) -> dict[str, V]:
        """An object whose values have one type; invalid values are left out."""
        inside = Fields(self.take(key, mapping) or {}, within=f"{self._within}{key}.", problems=self.problems)
        values = {name: inside.take(name, read) for name in inside.content}
        return {name: value for name, value in values.items() if value is not None}


def check_format(content: Any, name: str, version: int) -> None:
    """Raise ValueError unless ``content`` is an object in this format, in a version that we read."""
    if not isinstance(content, dict) or content.get("format") != name:
        raise ValueError(f"its format is not {name!r}")
    its_version = content.get("version")
    if type(its_version) is not int or its_version < 1:
        raise ValueError(f"its version is {shown(its_version)}; expected {version}")
    if its_version > version:
        raise ValueError(f"it has version {its_version}, this Endoscope reads {version}; upgrade Endoscope")


def shown(value: Any) -> str:
    """A value in a message: short strings and numbers as they are, others by their type."""
    if isinstance(value, (str, int, float)):
        return repr(value[:40] if isinstance(value, str) else value)[:44]
    return f"a {type(value).__name__}"


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a string")
    return value


def count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("expected a whole number, 0 or more")
    return value


def number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("expected a number")
    return float(value)


def texts(value: Any) -> tuple[str, ...]:
    return _items(value, text, "strings")


def counts(value: Any) -> tuple[int, ...]:
    return _items(value, count, "whole numbers, 0 or more")


def numbers(value: Any) -> tuple[float, ...]:
    return _items(value, number, "numbers")


def entries(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    return value


def _items(value: Any, read: Callable[[Any], T], what: str) -> tuple[T, ...]:
    try:
        return tuple(map(read, entries(value)))
    except ValueError:
        raise ValueError(f"expected a list of {what}") from None


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def direction(value: Any) -> Direction:
    if value not in get_args(Direction):
        raise ValueError("expected 'higher' or 'lower'")
    return value  # type: ignore[no-any-return]


def time(value: Any) -> datetime:
    """A time in ISO 8601; without a time zone it is UTC."""
    try:
        at = datetime.fromisoformat(text(value))
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("expected a time like 2024-02-29T12:00:00+00:00") from None
