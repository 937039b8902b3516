"""A config as plain data for ``config.json``: text about classes and objects, never something that runs when read."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import sys
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch

from endoscope.runners.config.file import unique_name

MAX_TEXT = 200
"""Longest description of an object, in characters."""
MAX_ITEMS = 1000
"""Longer lists and dicts are only named: a config may hold a dataset, which does not belong in a JSON file."""
_MAX_DEPTH = 32
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CONTAINERS = (dict, list, tuple, set, frozenset)

MISSING = object()
"""The value in a `Difference` where a key is absent."""


class Difference(NamedTuple):
    """A key path at which two configs differ, and the value of each."""

    path: str
    before: Any
    now: Any


def as_json(config: Any) -> Any:
    """A config in dicts, lists, strings and numbers. Equal configs give equal results.

    >>> as_json({"class": torch.nn.Linear, "args": {"sizes": (3, 4), "dtype": torch.float32}})
    {'class': 'torch.nn.modules.linear.Linear', 'args': {'sizes': [3, 4], 'dtype': {'repr': 'torch.float32'}}}

    Classes and functions become their path. A class from a config file is named after the file, wherever the file
    lies. Other objects and non-finite numbers become ``{"repr": text}``, at most `MAX_TEXT` characters, without memory
    addresses.
    """
    return _plain(config, 0)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str) or type(value) in (NoneType, bool, int):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if inspect.isclass(value) or inspect.isroutine(value):
        return _path(value)
    if isinstance(value, _CONTAINERS) and depth < _MAX_DEPTH:
        return _container(value, depth)
    return {"repr": _described(value)}


def _container(value: Any, depth: int) -> Any:
    if len(value) > MAX_ITEMS:
        return {"repr": f"a {type(value).__name__} of {len(value)} items"}
    if isinstance(value, dict):
        return {_name(key): _plain(item, depth + 1) for key, item in value.items()}
    items = [_plain(item, depth + 1) for item in value]
    return sorted(items, key=json.dumps) if isinstance(value, (set, frozenset)) else items


def _path(value: Any) -> str:
    return f"{_module(value)}.{value.__qualname__}"


def _module(value: Any) -> str:
    name = getattr(value, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).stem if file is not None and name == unique_name(Path(file)) else name


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(_path(key) if inspect.isclass(key) else _described(key))


def _described(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{type(value).__name__}(shape={list(value.shape)}, dtype={value.dtype})"
    if isinstance(value, _CONTAINERS):
        return f"a {type(value).__name__} nested deeper than {_MAX_DEPTH} levels"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # a user's broken __repr__ must not stop a run
        return f"a {type(value).__name__} whose repr raised {type(error).__name__}"
    text = _ADDRESS.sub("", text).replace(f"{type(value).__module__}.", f"{_module(type(value))}.")
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


def differences(a: Any, b: Any, path: str = "") -> list[Difference]:
    """Where two results of `as_json` differ. Paths are written as in overrides.

    >>> differences({"model": {"args": {"sizes": [3, 4]}}}, {"model": {"args": {"sizes": [3, 5]}}})
    [Difference(path='model.args.sizes.1', before=4, now=5)]
    """
    if isinstance(a, list) and isinstance(b, list):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            difference
            for key in dict.fromkeys([*a, *b])
            for difference in differences(a.get(key, MISSING), b.get(key, MISSING), f"{path}.{key}".lstrip("."))
        ]
    return [] if a == b and isinstance(a, bool) == isinstance(b, bool) else [Difference(path, a, b)]
