"""How values that JSON does not know stand in a line, each as ``{"$": kind, ...}``; and tensors made of several.

The tables are closed: decoding builds only what is listed here, whatever a file says.
"""

from __future__ import annotations

import base64
import datetime
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from endoscope.errors import PageFormatError
from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque, Summary, opaque

__all__ = [
    "COMPOSITES",
    "decode",
    "encode",
    "encode_array",
    "encode_floats",
    "one_row",
    "opaque",
    "put_together",
    "stacked",
    "take_apart",
]

Inner = Callable[[Any, Any], Any]


def encode(value: Any, inner: Inner) -> Any:
    """Encode one value that is neither plain JSON nor a tensor; ``inner(value, key)`` encodes what is inside it."""
    if isinstance(value, Summary):
        return {"$": "summary", "of": value.of}
    if isinstance(value, tuple):
        items = [inner(v, i) for i, v in enumerate(value)]
        if isinstance(value, NamedTupleValue):
            return {"$": "namedtuple", "type": value._type, "fields": list(value._fields), "items": items}
        return {"$": "tuple", "items": items}
    if isinstance(value, DataclassValue):
        return {"$": "dataclass", "type": value._type, "items": [[k, inner(v, k)] for k, v in value._fields.items()]}
    if isinstance(value, EnumValue):
        return {"$": "enum", "type": value.type, "name": value.name, "value": inner(value.value, "value")}
    if isinstance(value, (set, frozenset)):
        return {
            "$": "frozenset" if isinstance(value, frozenset) else "set",
            "items": [inner(v, i) for i, v in enumerate(value)],
        }
    if isinstance(value, bytes):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) and _DTYPE.fullmatch(value.dtype.str):
        return {"$": "numpy_scalar", "dtype": value.dtype.str, "base64": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, complex):
        return {"$": "complex", "items": [repr(value.real), repr(value.imag)]}
    if isinstance(value, pathlib.PurePath):
        return {"$": "path", "value": str(value), "windows": isinstance(value, pathlib.PureWindowsPath)}
    if isinstance(value, datetime.timedelta):
        return {"$": "timedelta", "items": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, (datetime.date, datetime.time)):
        return {"$": _date_kind(value), "value": value.isoformat()}
    if isinstance(value, Opaque):
        return {"$": "opaque", "type": value.type, "text": value.text}
    for plain in (str, int, float):  # subclasses that are none of the above
        if isinstance(value, plain) and not isinstance(value, bool):
            return inner(plain(value), "")
    return encode(opaque(value), inner)


def _date_kind(value: datetime.date | datetime.time) -> str:
    if isinstance(value, datetime.datetime):
        return "datetime"
    return "date" if isinstance(value, datetime.date) else "time"


_DATES: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
}


def encode_floats(values: Sequence[float]) -> dict[str, Any]:
    """A long list of floats, by its bytes."""
    return {"$": "floats", "base64": base64.b64encode(np.array(values, "<f8").tobytes()).decode()}


def decode(node: dict[str, Any], inner: Callable[[Any], Any]) -> Any:
    """Rebuild what `encode` wrote; ``inner`` decodes what is inside."""
    match node["$"]:
        case "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[node["value"]]
        case "summary":
            return Summary(_text(node["of"]))  # made when all of its dict is there
        case "floats":
            return np.frombuffer(base64.b64decode(node["base64"], validate=True), "<f8").tolist()
        case "dict":
            return {inner(k): inner(v) for k, v in node["items"]}
        case "tuple":
            return tuple(inner(node["items"]))
        case "namedtuple":
            return NamedTupleValue(_text(node["type"]), [_text(f) for f in node["fields"]], inner(node["items"]))
        case "dataclass":
            return DataclassValue(_text(node["type"]), {_text(k): inner(v) for k, v in node["items"]})
        case "enum":
            name = node["name"]
            return EnumValue(_text(node["type"]), None if name is None else _text(name), inner(node["value"]))
        case "set":
            return set(inner(node["items"]))
        case "frozenset":
            return frozenset(inner(node["items"]))
        case "bytes":
            return base64.b64decode(node["base64"], validate=True)
        case "array":
            return _array(node, node["shape"])
        case "numpy_scalar":
            return _array(node, ())[()]
        case "complex":
            real, imaginary = node["items"]
            return complex(float(real), float(imaginary))
        case "path":
            native = node["windows"] == isinstance(pathlib.Path(), pathlib.PureWindowsPath)
            kind = pathlib.Path if native else pathlib.PureWindowsPath if node["windows"] else pathlib.PurePosixPath
            return kind(_text(node["value"]))
        case "timedelta":
            days, seconds, microseconds = node["items"]
            return datetime.timedelta(days, seconds, microseconds)
        case "datetime" | "date" | "time" as kind:
            return _DATES[kind](_text(node["value"]))
        case "opaque":
            return Opaque(_text(node["type"]), _text(node["text"]))
        case unknown:
            raise PageFormatError(f"value of unknown kind {str(unknown)[:40]!r}; written by a newer version?")


_DTYPE = re.compile(r"[<>|](?:[biufc]\d{1,2}|[US]\d{1,9}|[mM]8\[\d{0,9}[a-zA-Z]{1,2}\])", re.ASCII)
"""The numpy dtypes that can stand in a line: numbers, text, bytes, dates."""


def encode_array(value: np.ndarray[Any, Any]) -> Any:
    """An array that no tensor can hold: text, bytes and dates by their bytes, anything else by its repr."""
    if not _DTYPE.fullmatch(value.dtype.str):
        return encode(opaque(value), lambda v, k: v)
    data = base64.b64encode(value.tobytes()).decode()
    return {"$": "array", "dtype": value.dtype.str, "shape": list(value.shape), "base64": data}


def _array(node: dict[str, Any], shape: Any) -> np.ndarray[Any, Any]:
    dtype, data = _array_dtype(node["dtype"]), base64.b64decode(node["base64"], validate=True)
    if dtype.itemsize == 0:  # empty text has no bytes at all
        if not 0 <= math.prod(shape) <= 1 << 20:
            raise PageFormatError("array of empty texts that is too large")
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _array_dtype(name: Any) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(_text(name)):
        raise PageFormatError(f"array of unknown dtype {name[:40]!r}")
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PageFormatError(f"expected text, found {type(value).__name__}")
    return value


# ---------------------------------------------------------------- tensors made of several
COMPOSITES = frozenset(("sparse_coo", "sparse_compressed", "quantized"))
_LAYOUTS = {str(lay): lay for lay in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)}
_QUANTIZED = {str(getattr(torch, n)): getattr(torch, n) for n in ("qint8", "quint8", "qint32") if hasattr(torch, n)}


def take_apart(t: torch.Tensor) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """The kind, the plain tensors and the further facts that `put_together` needs."""
    if t.is_quantized:
        about: dict[str, Any] = {"dtype": str(t.dtype)}
        if t.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            about["axis"] = t.q_per_channel_axis()
            return (
                "quantized",
                {"values": t.int_repr(), "scales": t.q_per_channel_scales(), "zeros": t.q_per_channel_zero_points()},
                about,
            )
        return "quantized", {"values": t.int_repr()}, {**about, "scale": t.q_scale(), "zero": t.q_zero_point()}
    if t.layout is torch.sparse_coo:
        return (
            "sparse_coo",
            {"indices": t._indices(), "values": t._values()},
            {"shape": list(t.shape), "coalesced": t.is_coalesced()},
        )
    if str(t.layout) in _LAYOUTS:
        by_row = t.layout in (torch.sparse_csr, torch.sparse_bsr)
        outer, within = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
        return (
            "sparse_compressed",
            {"outer": outer, "within": within, "values": t.values()},
            {"layout": str(t.layout), "shape": list(t.shape)},
        )
    raise TypeError(f"tensors of layout {t.layout} cannot be stored")


def put_together(node: dict[str, Any], parts: dict[str, torch.Tensor]) -> torch.Tensor:
    if node["$"] == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"],
            parts["values"],
            node["shape"],
            is_coalesced=bool(node["coalesced"]),
            check_invariants=True,
        )
    if node["$"] == "sparse_compressed":
        return torch.sparse_compressed_tensor(
            parts["outer"],
            parts["within"],
            parts["values"],
            node["shape"],
            layout=_LAYOUTS[node["layout"]],
            check_invariants=True,
        )
    dtype, values = _QUANTIZED[node["dtype"]], parts["values"].clone()
    if "axis" in node:
        scales, zeros = parts["scales"], parts["zeros"]
        made = torch._empty_per_channel_affine_quantized(
            values.shape, scales=scales, zero_points=zeros, axis=node["axis"], dtype=dtype
        )
    else:
        made = torch._empty_affine_quantized(values.shape, scale=node["scale"], zero_point=node["zero"], dtype=dtype)
    made_bytes, given = made.untyped_storage(), values.untyped_storage()
    if made_bytes.nbytes() != given.nbytes():
        raise PageFormatError("quantised tensor of another size than its values")
    made_bytes.copy_(given)
    return made


def one_row(t: torch.Tensor, row: int) -> torch.Tensor:
    """Row ``row`` of a composite tensor, with the leading 1 kept."""
    if t.is_quantized or t.layout is torch.strided:
        return t[row : row + 1]
    if t.layout is torch.sparse_coo:
        indices, values = t._indices(), t._values()
        keep = (indices[0] == row).nonzero().flatten()
        indices = indices[:, keep]
        indices[0] = 0
        shape = (1, *t.shape[1:])
        return torch.sparse_coo_tensor(
            indices, _rows(values, keep), shape, is_coalesced=t.is_coalesced() or None, check_invariants=False
        )
    _, parts, _ = take_apart(t)
    outer, within, values = parts["outer"], parts["within"], parts["values"]
    if outer.ndim > 1:  # a batch of matrices
        cut = (slice(row, row + 1),)
        outer, within, values = outer[cut], within[cut], values[cut]
    elif t.layout is torch.sparse_csr:
        first, end = outer[row : row + 2].tolist()
        outer, within, values = torch.tensor([0, end - first]).to(outer), within[first:end], values[first:end]
    else:  # rows lie across the columns, or inside blocks
        plain: torch.Tensor = t.to_sparse_coo()  # type: ignore[no-untyped-call]
        one = one_row(plain.coalesce(), row)
        return one.to_sparse(layout=t.layout) if t.layout is torch.sparse_csc else one
    return torch.sparse_compressed_tensor(
        outer, within, values, (1, *t.shape[1:]), layout=t.layout, check_invariants=False
    )


def _rows(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``values[keep]`` for any dtype: the narrow floats cannot be indexed, their bytes can."""
    count = len(values)
    if not count or not len(keep):
        return values[:0]
    whole = as_bytes(values).reshape(count, -1)[keep]
    return whole.view(values.dtype).reshape(len(keep), *values.shape[1:])


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a plain tensor, row-major, without a copy where its own lie so."""
    if not t.numel():
        return torch.empty(0, dtype=torch.uint8)
    return t.contiguous().as_strided((t.numel(),), (1,)).view(torch.uint8)


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.stack` of plain tensors of one shape and dtype, for any dtype."""
    first = tensors[0]
    if not first.numel():
        return first.new_empty((len(tensors), *first.shape))
    whole = torch.stack([as_bytes(t) for t in tensors])
    return whole.view(first.dtype).reshape(len(tensors), *first.shape)
