"""Bit-exact sameness of captured values: two values are the same when their `canonical` forms are equal.

Written apart from the code under test, so that a mistake there cannot hide here. Stand-ins (`DataclassValue`,
`EnumValue`, ...) have the form of what they stand for.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import itertools
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque, WholeBatch

Form = tuple[Any, ...]


def canonical(value: Any) -> Form:
    """A nested tuple that is equal for the same value only: bits of floats and tensors, types, order of keys."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return ("scalar", value.dtype.str, value.tobytes())
    if isinstance(value, (enum.Enum, EnumValue)):
        of = value.type if isinstance(value, EnumValue) else _name(type(value))
        return ("enum", of, value.name, canonical(value.value))
    if isinstance(value, WholeBatch):
        return canonical(value.value)
    if isinstance(value, Opaque):
        return ("opaque", value.type, value.text)
    if isinstance(value, float):
        return ("float", "nan" if value != value else struct.pack("<d", value))
    if isinstance(value, complex):
        return ("complex", canonical(value.real), canonical(value.imag))
    if isinstance(value, DataclassValue):
        return ("dataclass", value._type, tuple((k, canonical(value[k])) for k in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return ("dataclass", _name(type(value)), tuple((k, canonical(v)) for k, v in fields))
    if isinstance(value, Mapping):
        return ("dict", tuple((canonical(k), canonical(v)) for k, v in value.items()))
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, tuple(sorted(map(canonical, value), key=repr)))
    if isinstance(value, list):
        return ("list", tuple(map(canonical, value)))
    if isinstance(value, tuple):
        return (*_tuple_kind(value), tuple(map(canonical, value)))
    if isinstance(value, pathlib.PurePath):
        return ("path", isinstance(value, pathlib.PureWindowsPath), str(value))
    return (type(value).__name__, value)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _tuple_kind(value: tuple[Any, ...]) -> Form:
    if isinstance(value, NamedTupleValue):
        return ("namedtuple", getattr(value, "_type", None) or value.type, value._fields)
    fields = getattr(value, "_fields", None)
    return ("tuple",) if fields is None else ("namedtuple", _name(type(value)), fields)


def raw(t: torch.Tensor) -> bytes:
    """The bytes of a strided tensor in logical order."""
    t = t.detach().resolve_conj().resolve_neg()
    if not t.is_contiguous():
        t = t.clone(memory_format=torch.contiguous_format)
    return ctypes.string_at(t.data_ptr(), t.numel() * t.itemsize) if t.numel() else b""  # wherever it is aligned


def _tensor(t: torch.Tensor) -> Form:
    about = (str(t.layout), str(t.dtype), tuple(t.shape))
    if t.is_quantized:
        if t.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            scheme: Form = (t.q_per_channel_axis(), raw(t.q_per_channel_scales()), raw(t.q_per_channel_zero_points()))
        else:
            scheme = (t.q_scale(), t.q_zero_point())
        return ("quantised", *about, scheme, raw(t.int_repr()))
    if t.layout is torch.strided:
        return ("tensor", *about, raw(t))
    return ("sparse", *about, *_components(t))


def _components(t: torch.Tensor) -> Form:
    if t.layout is torch.sparse_coo:
        return (t.is_coalesced(), canonical(t._indices()), canonical(t._values()))
    return tuple(canonical(part) for part in compressed_parts(t))


def compressed_parts(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return t.crow_indices(), t.col_indices(), t.values()
    return t.ccol_indices(), t.row_indices(), t.values()


def stored_elements(t: torch.Tensor) -> list[tuple[tuple[int, ...], bytes]]:
    """Every stored element of a two-dimensional sparse tensor, by coordinates: the same whatever its layout."""
    if t.layout is torch.sparse_coo:
        found = [(tuple(at), raw(v)) for at, v in zip(t._indices().T.tolist(), t._values(), strict=True)]
        return sorted(found, key=lambda f: f[0])
    outer, within, values = compressed_parts(t)
    lanes = torch.repeat_interleave(torch.arange(len(outer) - 1), outer.diff())
    found = []
    for lane, at, block in zip(lanes.tolist(), within.tolist(), values, strict=True):
        place = (lane, at) if t.layout in (torch.sparse_csr, torch.sparse_bsr) else (at, lane)
        rows, columns = block.shape or (1, 1)
        for i, j in itertools.product(range(rows), range(columns)):
            found.append(((place[0] * rows + i, place[1] * columns + j), raw(block[i, j] if block.ndim else block)))
    return sorted(found, key=lambda f: f[0])
