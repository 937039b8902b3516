"""Rebuilding a container with other contents, in its own type."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from endoscope.values import is_namedtuple


def map_items(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A container with ``change(item, key)`` for each item; a value that is not a container is returned as it is.

    Lists, tuples, namedtuples, mappings and dataclass instances keep their type. An immutable mapping becomes a dict.

    >>> map_items({"a": 1, "b": [2, 3]}, lambda item, key: (key, item))
    {'a': ('a', 1), 'b': ('b', [2, 3])}
    """
    if is_namedtuple(value):
        return type(value)(*(change(item, k) for k, item in enumerate(value)))
    if isinstance(value, (list, tuple)):
        return type(value)(change(item, k) for k, item in enumerate(value))
    if isinstance(value, Mapping):
        return _map_mapping(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, change(getattr(value, field.name), field.name))
        return twin
    return value


def _map_mapping(value: Mapping[Any, Any], change: Callable[[Any, Any], Any]) -> Any:
    changed = {key: change(item, key) for key, item in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return changed
    clone = copy.copy(value)
    clone.update(changed)
    return clone
