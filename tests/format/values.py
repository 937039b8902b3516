"""Hypothesis strategies for what a debugger may return."""

from __future__ import annotations

import datetime
import enum
import pathlib
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from endoscope.values import per_datapoint, whole_batch

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex128, torch.complex64,
    torch.complex32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16,
    torch.uint8, torch.bool,
]  # fmt: skip

NUMPY_DTYPES = [np.dtype(c) for c in "?bhilBHILefdFD"]


class Split(enum.Enum):
    TRAIN = "train"
    TEST = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Parts(enum.Flag):
    HEAD = 1
    TAIL = 2


Box = namedtuple("Box", "x y label")


@dataclass
class Detection:
    score: Any
    boxes: Any = None


@dataclass(frozen=True)
class Key:
    name: str


def from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of exactly these bits, whatever they mean: signalling NaNs, payloads, denormals."""
    if dtype is torch.bool:
        data = bytes(b & 1 for b in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(shapes) if shape is None else shape
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    t = from_bytes(draw(st.binary(min_size=n, max_size=n)), dtype, shape)
    return draw(st.sampled_from(arrangements(t)))


def arrangements(t: torch.Tensor) -> list[torch.Tensor]:
    """The same kind of tensor as views, strides and flags can arrange it. The shape stays."""
    found = [t]
    if t.ndim > 1:
        found.append(t.mT.contiguous().mT)
    if t.ndim == 4:
        found.append(t.contiguous(memory_format=torch.channels_last))
    if t.ndim and t.shape[0]:
        wide = torch.empty((*t.shape[:-1], 2 * t.shape[-1]), dtype=t.dtype)
        wide[..., ::2].copy_(t)
        found += [wide[..., ::2], t[:1].expand(t.shape)]
    if t.dtype in (torch.complex64, torch.complex128):
        found += [t.conj(), t.conj().imag, torch._neg_view(t)]
    if t.is_floating_point() or t.is_complex():
        found.append(t.clone().requires_grad_())
        if t.dtype in (torch.float32, torch.float64):
            found += [t.clone().requires_grad_() * 1, torch.nn.Parameter(t.clone()), torch._neg_view(t)]
    return found


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    dtype = draw(st.sampled_from(NUMPY_DTYPES))
    shape = draw(shapes) if shape is None else shape
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=n, max_size=n)))
    a = (
        np.frombuffer(data, dtype).reshape(shape)
        if dtype.kind != "b"
        else np.frombuffer(data, np.uint8).reshape(shape) > 127
    )
    return draw(st.sampled_from([a, np.asfortranarray(a), a[..., ::-1] if a.ndim else a, np.broadcast_to(a, a.shape)]))


texts = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates included
zones = st.none() | st.integers(-1439, 1439).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m)))
huge = st.integers(-(10**4000), 10**4000)

hashable_atoms = st.one_of(
    st.none(), st.booleans(), huge, st.floats(allow_nan=False), texts, st.just("$"), st.binary(max_size=8),
    st.complex_numbers(allow_nan=False), texts.map(pathlib.PurePosixPath), texts.map(pathlib.PureWindowsPath),
    st.datetimes(timezones=zones), st.dates(), st.times(timezones=zones), st.timedeltas(),
    st.sampled_from([Split.TRAIN, Split.TEST, Level.HIGH, Parts.HEAD, Parts.HEAD | Parts.TAIL, Parts(0)]),
    st.sampled_from([np.float64(0.5), np.int64(-1), np.bool_(True), np.complex64(1j), np.float16(2)]),
)  # fmt: skip
hashables = st.recursive(
    hashable_atoms,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
scalars = hashable_atoms | st.floats() | st.complex_numbers() | arrays(shape=()).map(lambda a: a[()])
leaves = scalars | tensors() | arrays()


def containers(inner: st.SearchStrategy[Any], *, keys: st.SearchStrategy[Any] = hashables) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(texts, inner, max_size=3).map(OrderedDict),
        st.builds(Box, inner, inner, inner),
        st.builds(Detection, inner, inner),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
    )


values = st.recursive(leaves, containers, max_leaves=12)


@st.composite
def batches(draw: st.DrawFn, count: int, depth: int = 2) -> tuple[Any, list[Any]]:
    """What a debugger returns for a batch of ``count``, and what it would return for each datapoint alone."""
    kinds = [
        "sliced",
        "array",
        "per_datapoint",
        "whole_batch",
        "shared",
        *(["dict", "tuple", "dataclass"] if depth else []),
    ]
    match draw(st.sampled_from(kinds)):
        case "sliced" | "array" as kind:
            inner = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
            whole = draw((tensors if kind == "sliced" else arrays)(shape=(count, *inner)))
            return whole, [whole[j : j + 1] for j in range(count)]
        case "per_datapoint":
            each = draw(st.lists(values, min_size=count, max_size=count) | _alike(count))
            return per_datapoint(each), [per_datapoint([v]) for v in each]
        case "whole_batch":
            value = whole_batch(draw(values))
            return value, [value] * count
        case "shared":
            value = draw(scalars | tensors(shape=()) | tensors(shape=(count + 1, 2)) | arrays(shape=(count + 2,)))
            return value, [value] * count
        case "dict":
            a, b = draw(batches(count, depth - 1)), draw(batches(count, depth - 1))
            return {"a": a[0], 2: b[0]}, [{"a": x, 2: y} for x, y in zip(a[1], b[1], strict=True)]
        case "tuple":
            a, b = draw(batches(count, depth - 1)), draw(batches(count, depth - 1))
            return (a[0], [b[0]]), [(x, [y]) for x, y in zip(a[1], b[1], strict=True)]
        case _:
            a = draw(batches(count, depth - 1))
            return Detection(a[0], "shared"), [Detection(x, "shared") for x in a[1]]


@st.composite
def _alike(draw: st.DrawFn, count: int) -> list[torch.Tensor]:
    """Tensors of one dtype and shape, as a debugger that loops over the batch returns them."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    return [from_bytes(draw(st.binary(min_size=n, max_size=n)), dtype, shape) for _ in range(count)]
