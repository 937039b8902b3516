"""A captured value as facts that JSON can hold: types, shapes, statistics and scalars, but no tensor's data.

Facts are ``{"type": ..., ...}``: a container has ``items``, a list of plain values ``values``, a scalar ``value``, a
tensor what `describe_array` says. NaN and infinities stand as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import datetime
import math
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from endoscope.commands.arrays import describe_array
from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque

_PLAIN = (str, bool, int, float, type(None))


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, or an array of numbers."""
    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")


def describe(value: Any) -> dict[str, Any]:
    """The facts of one value.

    >>> describe({"mean": 0.5})
    {'type': 'dict', 'items': {'mean': {'type': 'float', 'value': 0.5}}}
    """
    if is_array(value):
        return describe_array(value)
    if isinstance(value, np.ndarray):  # of text
        return {"type": "text array", "shape": list(value.shape), "values": value.ravel().tolist()}
    held = members(value)
    if held is None:
        return _leaf(value)
    facts: dict[str, Any] = {"type": type_of(value)}
    if is_sequence(value):
        items = [v for _, v in held]
        if all(isinstance(v, _PLAIN) for v in items):
            return {**facts, "length": len(items), "values": [plain_scalar(v) for v in items]}
        return {**facts, "length": len(items), "items": [describe(v) for v in items]}
    return {**facts, "items": {k: describe(v) for k, v in held}}


def members(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, by name; None for a value that is no container."""
    if isinstance(value, dict):
        return list(zip(unique(str(k) for k in value), value.values(), strict=True))
    if isinstance(value, DataclassValue):
        return [(name, value[name]) for name in value]
    if isinstance(value, NamedTupleValue):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return [(str(k), v) for k, v in enumerate(value)]
    return None


def is_sequence(value: Any) -> bool:
    """Whether a container's members have a place, rather than a name."""
    return isinstance(value, (list, tuple, set, frozenset)) and not isinstance(value, NamedTupleValue)


def unique(names: Iterable[str]) -> list[str]:
    """The names, with ``~2``, ``~3``, ... behind those that came before."""
    taken: dict[str, None] = {}
    for name in names:
        taken[free_name(name, taken)] = None
    return list(taken)


def free_name(name: str, taken: Iterable[str]) -> str:
    free, again = name, 2
    while free in taken:
        free, again = f"{name}~{again}", again + 1
    return free


def type_of(value: Any) -> str:
    """What a value is called on screen; stand-ins for types of the run go by the run's name."""
    if isinstance(value, (DataclassValue, NamedTupleValue)):
        return value._type
    if isinstance(value, (EnumValue, Opaque)):
        return value.type
    return type(value).__name__


def _leaf(value: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": type_of(value)}
    if isinstance(value, Opaque):
        return {**facts, "text": value.text, "stored": "only the start of its repr"}
    if isinstance(value, bytes):
        return {**facts, "length": len(value)}
    if isinstance(value, EnumValue):
        return {**facts, "value": value.name}
    return {**facts, "value": plain_scalar(value)}


def plain(value: Any, array: Callable[[Any, str], Any], name: str = "") -> Any:
    """``value`` itself as JSON. ``array(tensor, name)`` says what stands for a tensor; names grow by ``/key``."""
    if is_array(value):
        return array(value, name)
    if isinstance(value, np.ndarray):  # of text
        return value.tolist()
    if isinstance(value, bytes):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Opaque):
        return {"$": "opaque", "type": value.type, "text": value.text}
    held = members(value)
    if held is None:
        return plain_scalar(value)
    inside = [(k, plain(v, array, f"{name}/{k}" if name else k)) for k, v in held]
    return [v for _, v in inside] if is_sequence(value) else dict(inside)


def plain_scalar(value: Any) -> Any:
    """A scalar as JSON has it, or as text that says the same."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (pathlib.PurePath, complex, datetime.timedelta)):
        return str(value)
    if isinstance(value, EnumValue):
        return value.name
    raise TypeError(f"{type(value).__name__} is no scalar of a page")
