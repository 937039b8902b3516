"""Which values a config key accepts: a description for people, and a function that checks a value. Builds nothing."""

from __future__ import annotations

import math
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch

from endoscope.config import is_node
from endoscope.errors import closest

NODE = "a node {'class': ..., 'args': {...}}"


class Refused(ValueError):
    """The value does not fit. The message, if any, is a hint at the right value."""


@dataclass(frozen=True)
class Kind:
    """The accepted values in words, and a function that returns the checked value or raises `Refused`.

    >>> whole(at_least=1).read(3)
    3
    >>> whole(at_least=1).expected
    'a whole number, 1 or more'

    given: the arguments that the runner adds to a node.
    """

    expected: str
    read: Callable[[Any], Any]
    given: tuple[str, ...] = ()


def _kind(
    expected: str, fits: Callable[[Any], bool], convert: Callable[[Any], Any] = lambda value: value, *given: str
) -> Kind:
    def read(value: Any) -> Any:
        if not fits(value):
            raise Refused
        return convert(value)

    return Kind(expected, read, given)


def anything() -> Kind:
    return _kind("any value", lambda value: True)


def integer() -> Kind:
    return _kind("a whole number", lambda value: type(value) is int)


def number() -> Kind:
    return _kind("a number", lambda value: type(value) in (int, float), float)


def text() -> Kind:
    return _kind("a string", lambda value: type(value) is str)


def flag() -> Kind:
    return _kind("True or False", lambda value: type(value) is bool)


def whole(*, at_least: int, at_most: int | None = None) -> Kind:
    def fits(value: Any) -> bool:
        return type(value) is int and value >= at_least and (at_most is None or value <= at_most)

    limits = f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}"
    return _kind(f"a whole number, {limits}", fits)


def positive() -> Kind:
    def fits(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and value > 0

    return _kind("a number above 0", fits, float)


def texts() -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)

    return _kind("a list of strings", fits, tuple)


def choice(*values: Any) -> Kind:
    def read(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            names = [one for one in values if isinstance(one, str)]
            raise Refused(closest(value, names, most=1) if isinstance(value, str) else "")
        return value

    *others, last = map(repr, values)
    return Kind(f"{', '.join(others)} or {last}" if others else last, read)


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


def path() -> Kind:
    def read(value: Any) -> Path:
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(value):
            raise Refused
        try:
            return Path(value).expanduser()
        except RuntimeError as e:  # ~name of an unknown user
            raise Refused(f"; {e}") from None

    return Kind("a path", read)


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
    """A node, not a built object, because the runner adds arguments."""
    return _kind(NODE, is_node, lambda value: value, *given)


def node_or(what: str, fits: Callable[[Any], bool]) -> Kind:
    """A node, or a built object."""

    def read(value: Any) -> Any:
        # A class without 'args' was probably meant as a node.
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
    return Kind(f"{kind.expected}, or None", lambda value: None if value is None else kind.read(value), kind.given)


_PLAIN: dict[Any, Callable[[], Kind]] = {
    bool: flag, int: integer, float: number, str: text, Path: path,
}  # fmt: skip


def annotated(annotation: Any) -> Kind:
    """The kind of a type annotation: bool, int, float, str, Path, a Literal, and unions of these and None.

    >>> annotated(int | None).expected
    'a whole number, or None'
    >>> annotated(dict[str, int]).expected
    'any value'
    """
    if annotation in _PLAIN:
        return _PLAIN[annotation]()
    if get_origin(annotation) is Literal:
        return choice(*get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        members = [annotated(member) for member in get_args(annotation) if member is not NoneType]
        if not any(member.expected == anything().expected for member in members):
            kind = either(*members)
            return optional(kind) if NoneType in get_args(annotation) else kind
    return anything()


def shown(value: Any) -> str:
    """A value in an error: short values as they are, tensors by their shape, others by their type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, int, float)):
        return shortened(repr(value))
    size = f" of shape {tuple(value.shape)}" if isinstance(value, (torch.Tensor, np.ndarray)) else ""
    return type_name(value) + size


def type_name(value: Any) -> str:
    """The type of a value, as 'a list' or 'an int'."""
    name = type(value).__name__
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {name}"


def shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
