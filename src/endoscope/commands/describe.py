"""A captured value as facts that JSON can hold: types, shapes, statistics and scalars, but no tensor's data.

Facts are ``{"type": ..., ...}``. A container has ``items``, a list of plain values has ``values``, a scalar has
``value``; for a tensor see `describe_array`. NaN and infinities become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from endoscope.commands.arrays import describe_array
from endoscope.render import plain
from endoscope.render.numbers import is_numbers
from endoscope.render.plain import type_of
from endoscope.values import EnumValue, NamedTupleValue, Opaque

_PLAIN = (str, bool, int, float, type(None))


def describe(value: Any) -> dict[str, Any]:
    """The facts of one value.

    >>> describe({"mean": 0.5})
    {'type': 'dict', 'items': {'mean': {'type': 'float', 'value': 0.5}}}
    """
    if is_numbers(value):
        return describe_array(value)
    if isinstance(value, np.ndarray):  # of text
        return {"type": "text array", "shape": list(value.shape), "values": value.ravel().tolist()}
    items = _members(value)
    if items is None:
        return _describe_scalar(value)
    facts: dict[str, Any] = {"type": type_of(value)}
    if not _is_sequence(value):
        return {**facts, "items": {name: describe(v) for name, v in items}}
    facts["length"] = len(items)
    if all(isinstance(v, _PLAIN) for _, v in items):
        return {**facts, "values": [plain_scalar(v) for _, v in items]}
    return {**facts, "items": [describe(v) for _, v in items]}


def _describe_scalar(value: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": type_of(value)}
    if isinstance(value, Opaque):
        return {**facts, "text": value.text, "stored": "only the start of its repr"}
    if isinstance(value, bytes):
        return {**facts, "length": len(value)}
    return {**facts, "value": plain_scalar(value)}


def _members(value: Any) -> list[tuple[str, Any]] | None:
    """The members of a container by name, no name twice; None for other values."""
    members = ((str(k), v) for k, v in value.items()) if isinstance(value, dict) else plain.members(value)
    if members is None:
        return None
    by_name: dict[str, Any] = {}
    for name, v in members:
        by_name[free_name(name, by_name)] = v
    return list(by_name.items())


def _is_sequence(value: Any) -> bool:
    """Whether a container's members have positions instead of names."""
    return isinstance(value, (list, tuple, set, frozenset)) and not isinstance(value, NamedTupleValue)


def free_name(name: str, taken: Container[str]) -> str:
    """``name``, or with ``~2``, ``~3``, ... appended if it is taken."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free


def as_json(value: Any, array: Callable[[Any, str], Any], name: str = "") -> Any:
    """The value itself as JSON. ``array(tensor, name)`` stands for a tensor; a member's name is ``name/key``."""
    if is_numbers(value):
        return array(value, name)
    if isinstance(value, np.ndarray):  # of text
        return value.tolist()
    if isinstance(value, bytes):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Opaque):
        return {"$": "opaque", "type": value.type, "text": value.text}
    members = _members(value)
    if members is None:
        return plain_scalar(value)
    items = {key: as_json(v, array, f"{name}/{key}" if name else key) for key, v in members}
    return list(items.values()) if _is_sequence(value) else items


def plain_scalar(value: Any) -> Any:
    """A scalar as JSON, or as complete text."""
    if isinstance(value, EnumValue):
        value = value.name
    return str(value) if isinstance(value, (str, pathlib.PurePath)) else plain.jsonable(value)
