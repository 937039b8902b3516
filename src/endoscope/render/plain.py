"""Values as plain data: what a container holds by name, and scalars as cells of a table and as JSON."""

from __future__ import annotations

import datetime
import math
import pathlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque

CELL = 200
"""Characters of a cell."""
SHORT_LIST = 8
"""Items of a list that stands in one cell."""
_EXACT = 1 << 53  # integers beyond this are not exact in a browser
_SCALARS = (
    str, bytes, bool, int, float, complex, type(None), np.generic, pathlib.PurePath,
    datetime.date, datetime.time, datetime.timedelta, EnumValue, Opaque,
)  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a value is one thing: text, a number, a date, ..."""
    return isinstance(value, _SCALARS)


def members(value: Any) -> Iterator[tuple[str, Any]] | None:
    """What a container holds, by name, one after the other; None for a value that is no container."""
    if isinstance(value, Mapping):
        return ((key_text(k), v) for k, v in value.items())
    if isinstance(value, DataclassValue):
        return ((name, value[name]) for name in value)
    if isinstance(value, NamedTupleValue):
        return iter(list(zip(value._fields, value, strict=False)))
    if isinstance(value, (set, frozenset)):
        value = sorted(islice(value, 10_000), key=repr) if len(value) <= 10_000 else list(value)
    if isinstance(value, (list, tuple)):
        return ((str(k), v) for k, v in enumerate(value))
    return None


def keys_of(value: Any) -> int:
    """How many members a container has."""
    return sum(1 for _ in value) if isinstance(value, DataclassValue) else len(value)


def key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(cell(key))


def type_of(value: Any) -> str:
    """What a value is called on screen; stand-ins for types of the run go by the run's name."""
    if isinstance(value, (DataclassValue, NamedTupleValue)):
        return value._type
    if isinstance(value, (EnumValue, Opaque)):
        return value.type
    return type(value).__name__


def shortened(text: str, most: int = CELL) -> str:
    """Text of at most ``most`` characters, which says how many there were."""
    return text if len(text) <= most else f"{text[:most]}… ({most:,} of {len(text):,} characters)"


def cell(value: Any) -> Any:
    """A value as a cell of a table: a number, a truth value, None, or short text."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        value = value.item()
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        if abs(value) <= _EXACT:
            return value
        return str(value) if value.bit_length() <= 512 else f"an integer of {value.bit_length():,} bits"
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, EnumValue):
        return shortened(str(value.name))
    if isinstance(value, Opaque):
        return shortened(value.text)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        inside = ", ".join(str(cell(v)) if is_scalar(v) else "…" for v in islice(value, SHORT_LIST))
        more = f", … ({SHORT_LIST} of {len(value):,})" if len(value) > SHORT_LIST else ""
        return shortened(f"[{inside}{more}]")
    return shortened(str(value)) if is_scalar(value) else f"a {type(value).__name__}"


def jsonable(value: Any) -> Any:
    """Plain data as JSON can hold it: NaN and infinities as text, and text that UTF-8 can hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {jsonable(str(k)): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if value is None or isinstance(value, (bool, int)):
        return value
    return jsonable(cell(value))
