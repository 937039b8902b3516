"""Values as plain data: the members of a container by name, and scalars as table cells, as JSON and as text."""

from __future__ import annotations

import datetime
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque

CELL = 200
"""Characters of a cell."""
SHORT_LIST = 8
"""Items of a list that fits in one cell."""
_EXACT = 1 << 53  # larger integers are not exact in a browser
_MOST_SORTED = 10_000
_SCALARS = (
    str, bytes, bool, int, float, complex, type(None), np.generic, pathlib.PurePath,
    datetime.date, datetime.time, datetime.timedelta, EnumValue, Opaque,
)  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a value is a single thing, such as text, a number or a date."""
    return isinstance(value, _SCALARS)


def members(value: Any) -> Iterator[tuple[str, Any]] | None:
    """The members of a container by name, lazily; None for a value that is not a container."""
    if isinstance(value, Mapping):
        return ((key_text(k), v) for k, v in value.items())
    if isinstance(value, DataclassValue):
        return ((name, value[name]) for name in value)
    if isinstance(value, NamedTupleValue):
        return iter(list(zip(value._fields, value, strict=False)))
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr) if len(value) <= _MOST_SORTED else list(value)
    if isinstance(value, (list, tuple)):
        return ((str(k), v) for k, v in enumerate(value))
    return None


def keys_of(value: Any) -> int:
    """How many members a container has."""
    return sum(1 for _ in value) if isinstance(value, DataclassValue) else len(value)


def key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(cell(key))


def type_of(value: Any) -> str:
    """Display name of a value's type. Stand-ins for types of the run go by the name they have there."""
    if isinstance(value, (DataclassValue, NamedTupleValue)):
        return value._type
    if isinstance(value, (EnumValue, Opaque)):
        return value.type
    return type(value).__name__


def shortened(text: str, most: int = CELL) -> str:
    """Text of at most ``most`` characters, with a note of how many there were."""
    return text if len(text) <= most else f"{text[:most]}… ({most:,} of {len(text):,} characters)"


def cell(value: Any) -> Any:
    """A value as a table cell: a number, a truth value, None, or short text."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        value = value.item()
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, (list, tuple)):
        return _list(value)
    return shortened(_text(value)) if is_scalar(value) else f"a {type(value).__name__}"


def _list(values: Sequence[Any]) -> str:
    inside = ", ".join(str(cell(v)) if is_scalar(v) else "…" for v in values[:SHORT_LIST])
    more = f", … ({SHORT_LIST} of {len(values):,})" if len(values) > SHORT_LIST else ""
    return shortened(f"[{inside}{more}]")


def _integer(value: int) -> int | str:
    if abs(value) <= _EXACT:
        return value
    return str(value) if value.bit_length() <= 512 else f"an integer of {value.bit_length():,} bits"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, EnumValue):
        return str(value.name)
    if isinstance(value, Opaque):
        return value.text
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def jsonable(value: Any) -> Any:
    """Plain data that JSON can hold: NaN and infinities as text, and text that UTF-8 can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {jsonable(str(k)): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else _NON_FINITE[str(value)]
    if isinstance(value, (int, type(None))):
        return value
    return str(value if isinstance(value, str) else cell(value)).encode(errors="replace").decode()


def value_text(value: Any) -> str:
    """A number as the viewer shows it, with a real minus sign; any other value as its text. Not escaped."""
    if value is None:
        return "–"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "∞", "-inf": "−∞"}[str(value)]
    return f"{value + 0.0:.4g}".replace("-", "−")  # + 0.0 drops the sign of -0.0
