"""What a value of the config may be: a text for people, and the reading of a value that fits it. Builds nothing."""

from __future__ import annotations

import math
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch

from endoscope.config import is_node
from endoscope.errors import closest

NODE = "a node {'class': ..., 'args': {...}}"


class Refused(ValueError):
    """The value does not fit; the text, if any, is a hint to the right one."""


@dataclass(frozen=True)
class Kind:
    """What fits, in words, and the function that reads a value or raises `Refused`.

    >>> whole(at_least=1).read(3)
    3
    >>> whole(at_least=1).expected
    'a whole number, 1 or more'

    given: the names that the runner adds to a node's arguments.
    """

    expected: str
    read: Callable[[Any], Any]
    given: tuple[str, ...] = ()


def anything() -> Kind:
    return Kind("any value", lambda value: value)


def annotated(annotation: Any) -> Kind:
    """What a plain annotation says: bool, int, float, str, Path, a Literal, and unions of these and None.

    >>> annotated(int | None).expected
    'a whole number, or None'
    >>> annotated(dict[str, int]).expected
    'any value'
    """
    plain = {bool: flag, int: integer, float: number, str: text, Path: path}
    if annotation in plain:
        return plain[annotation]()
    if get_origin(annotation) is Literal:
        return literal(*get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        members = [annotated(member) for member in get_args(annotation) if member is not NoneType]
        if not any(member.expected == anything().expected for member in members):
            kind = either(*members)
            return optional(kind) if NoneType in get_args(annotation) else kind
    return anything()


def integer() -> Kind:
    return Kind("a whole number", _of_type(int))


def number() -> Kind:
    def read(value: Any) -> float:
        if type(value) not in (int, float):
            raise Refused
        return float(value)

    return Kind("a number", read)


def text() -> Kind:
    return Kind("a text", _of_type(str))


def _of_type(wanted: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not wanted:
            raise Refused
        return value

    return read


def literal(*values: Any) -> Kind:
    if all(isinstance(value, str) for value in values):
        return choice(*values)

    def read(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            raise Refused
        return value

    return Kind(f"one of {', '.join(map(repr, values))}", read)


def whole(*, at_least: int, at_most: int | None = None) -> Kind:
    def read(value: Any) -> int:
        if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
            raise Refused
        return value

    limits = f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}"
    return Kind(f"a whole number, {limits}", read)


def positive() -> Kind:
    def read(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise Refused
        return float(value)

    return Kind("a number above 0", read)


def flag() -> Kind:
    return Kind("True or False", _of_type(bool))


def a_class() -> Kind:
    def read(value: Any) -> type:
        if isinstance(value, str):
            try:
                value = pkgutil.resolve_name(value)
            except (ImportError, AttributeError, ValueError) as e:
                raise Refused(f"; {e}") from None
        if not isinstance(value, type):
            raise Refused
        return value

    return Kind("a class or its path", read)


def choice(*names: str) -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise Refused(closest(value, names, most=1) if isinstance(value, str) else "")
        return str(value)

    shown = [repr(name) for name in names]
    return Kind(" or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown), read)


def path() -> Kind:
    def read(value: Any) -> Path:
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(value):
            raise Refused
        try:
            return Path(value).expanduser()
        except RuntimeError as e:  # nobody's home
            raise Refused(f"; {e}") from None

    return Kind("a path", read)


def texts() -> Kind:
    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise Refused
        return tuple(value)

    return Kind("a list of texts", read)


def device() -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, (str, torch.device)):
            raise Refused
        try:
            return value if value == "auto" else str(torch.device(value))
        except RuntimeError:
            raise Refused from None

    return Kind("'auto' or a device like 'cpu' or 'cuda:0'", read)


def node(*given: str) -> Kind:
    """A node, and nothing that is already built: the runner has arguments to add."""

    def read(value: Any) -> Any:
        if not is_node(value):
            raise Refused
        return value

    return Kind(NODE, read, given)


def node_or(what: str, fits: Callable[[Any], bool]) -> Kind:
    """A node, or an object that is already built."""

    def read(value: Any) -> Any:
        # A class alone is a node that was not written out.
        if not is_node(value) and (isinstance(value, (dict, str, type)) or not fits(value)):
            raise Refused
        return value

    return Kind(f"{NODE} or {what}", read)


def dataset() -> Kind:
    return node_or("a Dataset", lambda value: hasattr(value, "__getitem__") or hasattr(value, "__iter__"))


def either(*kinds: Kind) -> Kind:
    def read(value: Any) -> Any:
        hints = []
        for kind in kinds:
            try:
                return kind.read(value)
            except Refused as refused:
                hints.append(str(refused))
        raise Refused("".join(hints))

    return Kind(", or ".join(kind.expected for kind in kinds), read, kinds[0].given)


def optional(kind: Kind) -> Kind:
    def read(value: Any) -> Any:
        return None if value is None else kind.read(value)

    return Kind(f"{kind.expected}, or None", read, kind.given)


def shown(value: Any) -> str:
    """A value in an error: short ones as they are, others by their type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, dict):
        return "a dict without 'class'" if "class" not in value else "a dict"
    if value is None or isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:80]}..."
    return f"a {type(value).__name__}"
