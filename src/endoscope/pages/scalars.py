"""Values that JSON does not know, each as ``{"$": kind, ...}``. Tensors are elsewhere: `encoding`, `composites`.

Decoding builds only the kinds of the table here, whatever a file says.
"""

from __future__ import annotations

import base64
import datetime
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from endoscope.errors import PageFormatError
from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque, Summary, opaque

Inner = Callable[[Any, Any], Any]
"""Encodes a value inside another one, given its key."""
Decode = Callable[[Any], Any]
"""Decodes a value inside another one."""


# ---------------------------------------------------------------- encoding
def encode(value: Any, inner: Inner) -> Any:
    """Encode one value that is neither plain JSON nor a tensor; ``inner(value, key)`` encodes what is inside it."""
    for kind, encoder in _ENCODERS:
        if isinstance(value, kind):
            return encoder(value, inner)
    return _encode_opaque(opaque(value))


def encode_float(value: float) -> Any:
    return value if math.isfinite(value) else _node("float", value=repr(value))


def encode_floats(values: Sequence[float]) -> dict[str, Any]:
    """A long list of floats, as bytes."""
    return _node("floats", base64=_base64(np.array(values, "<f8").tobytes()))


def encode_array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An array that no tensor can hold: text, bytes and dates as bytes, anything else as its repr."""
    if not _DTYPE.fullmatch(value.dtype.str):
        return _encode_opaque(opaque(value))
    return _node("array", dtype=value.dtype.str, shape=list(value.shape), base64=_base64(value.tobytes()))


def _encode_numpy_scalar(value: np.generic) -> dict[str, Any]:
    if not _DTYPE.fullmatch(value.dtype.str):
        return _encode_opaque(opaque(value))
    return _node("numpy_scalar", dtype=value.dtype.str, base64=_base64(value.tobytes()))


def _encode_opaque(value: Opaque) -> dict[str, Any]:
    return _node("opaque", type=value.type, text=value.text)


def _node(kind: str, **members: Any) -> dict[str, Any]:
    return {"$": kind, **members}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _items(values: Iterable[Any], inner: Inner) -> list[Any]:
    return [inner(v, i) for i, v in enumerate(values)]


def _pairs(fields: dict[str, Any], inner: Inner) -> list[Any]:
    return [[k, inner(v, k)] for k, v in fields.items()]


# The first type that fits is taken: subclasses come before their bases.
_ENCODERS: list[tuple[type, Callable[[Any, Inner], Any]]] = [
    (Summary, lambda v, inner: _node("summary", of=v.of)),
    (NamedTupleValue, lambda v, inner: _node("namedtuple", type=v._type, fields=[*v._fields], items=_items(v, inner))),
    (tuple, lambda v, inner: _node("tuple", items=_items(v, inner))),
    (DataclassValue, lambda v, inner: _node("dataclass", type=v._type, items=_pairs(v._fields, inner))),
    (EnumValue, lambda v, inner: _node("enum", type=v.type, name=v.name, value=inner(v.value, "value"))),
    (frozenset, lambda v, inner: _node("frozenset", items=_items(v, inner))),
    (set, lambda v, inner: _node("set", items=_items(v, inner))),
    (bytes, lambda v, inner: _node("bytes", base64=_base64(v))),
    (np.generic, lambda v, inner: _encode_numpy_scalar(v)),
    (complex, lambda v, inner: _node("complex", items=[repr(v.real), repr(v.imag)])),
    (pathlib.PurePath, lambda v, inner: _node("path", value=str(v), windows=isinstance(v, pathlib.PureWindowsPath))),
    (datetime.timedelta, lambda v, inner: _node("timedelta", items=[v.days, v.seconds, v.microseconds])),
    (datetime.datetime, lambda v, inner: _node("datetime", value=v.isoformat())),
    (datetime.date, lambda v, inner: _node("date", value=v.isoformat())),
    (datetime.time, lambda v, inner: _node("time", value=v.isoformat())),
    (Opaque, lambda v, inner: _encode_opaque(v)),
    (str, lambda v, inner: inner(str(v), "")),
    (int, lambda v, inner: inner(int(v), "")),
    (float, lambda v, inner: inner(float(v), "")),
]


# ---------------------------------------------------------------- decoding
def decode(node: dict[str, Any], inner: Decode) -> Any:
    """Rebuild what `encode` wrote; ``inner`` decodes what is inside."""
    decoder = _DECODERS.get(node["$"])
    if decoder is None:
        raise PageFormatError(f"value of unknown kind {str(node['$'])[:40]!r}; written by a newer version?")
    return decoder(node, inner)


def _decode_namedtuple(node: dict[str, Any], inner: Decode) -> NamedTupleValue:
    return NamedTupleValue(_text(node["type"]), [_text(f) for f in node["fields"]], inner(node["items"]))


def _decode_dataclass(node: dict[str, Any], inner: Decode) -> DataclassValue:
    return DataclassValue(_text(node["type"]), {_text(k): inner(v) for k, v in node["items"]})


def _decode_enum(node: dict[str, Any], inner: Decode) -> EnumValue:
    name = node["name"]
    return EnumValue(_text(node["type"]), None if name is None else _text(name), inner(node["value"]))


def _decode_complex(node: dict[str, Any], inner: Decode) -> complex:
    real, imaginary = node["items"]
    return complex(float(real), float(imaginary))


def _decode_timedelta(node: dict[str, Any], inner: Decode) -> datetime.timedelta:
    days, seconds, microseconds = node["items"]
    return datetime.timedelta(days, seconds, microseconds)


def _decode_path(node: dict[str, Any], inner: Decode) -> pathlib.PurePath:
    """A `Path` if it is of this system's kind."""
    if node["windows"] == isinstance(pathlib.Path(), pathlib.PureWindowsPath):
        return pathlib.Path(_text(node["value"]))
    kind = pathlib.PureWindowsPath if node["windows"] else pathlib.PurePosixPath
    return kind(_text(node["value"]))


_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DECODERS: dict[Any, Callable[[dict[str, Any], Decode], Any]] = {
    "float": lambda node, inner: _FLOATS[node["value"]],
    "summary": lambda node, inner: Summary(_text(node["of"])),  # replaced by numbers once its dict is decoded
    "floats": lambda node, inner: np.frombuffer(_bytes(node), "<f8").tolist(),
    "dict": lambda node, inner: {inner(k): inner(v) for k, v in node["items"]},
    "tuple": lambda node, inner: tuple(inner(node["items"])),
    "set": lambda node, inner: set(inner(node["items"])),
    "frozenset": lambda node, inner: frozenset(inner(node["items"])),
    "namedtuple": _decode_namedtuple,
    "dataclass": _decode_dataclass,
    "enum": _decode_enum,
    "bytes": lambda node, inner: _bytes(node),
    "array": lambda node, inner: _array(node, node["shape"]),
    "numpy_scalar": lambda node, inner: _array(node, ())[()],
    "complex": _decode_complex,
    "path": _decode_path,
    "timedelta": _decode_timedelta,
    "datetime": lambda node, inner: datetime.datetime.fromisoformat(_text(node["value"])),
    "date": lambda node, inner: datetime.date.fromisoformat(_text(node["value"])),
    "time": lambda node, inner: datetime.time.fromisoformat(_text(node["value"])),
    "opaque": lambda node, inner: Opaque(_text(node["type"]), _text(node["text"])),
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PageFormatError(f"expected text, found {type(value).__name__}")
    return value


def _bytes(node: dict[str, Any]) -> bytes:
    return base64.b64decode(node["base64"], validate=True)


_DTYPE = re.compile(r"[<>|](?:[biufc]\d{1,2}|[US]\d{1,9}|[mM]8\[\d{0,9}[a-zA-Z]{1,2}\])", re.ASCII)
"""The numpy dtypes that a line can hold: numbers, text, bytes, dates."""


def _array(node: dict[str, Any], shape: Any) -> np.ndarray[Any, Any]:
    name, data = _text(node["dtype"]), _bytes(node)
    if not _DTYPE.fullmatch(name):
        raise PageFormatError(f"array of unknown dtype {name[:40]!r}")
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.itemsize == 0:  # empty text has no bytes at all
        if not 0 <= math.prod(shape) <= 1 << 20:
            raise PageFormatError("array of empty texts that is too large")
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape).copy()
