"""Encoding: a record's values to tensor bytes and one line of JSON. Runs on the writer thread; touches no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from endoscope.capturing.snapshot import Snapshot
from endoscope.pages import composites, format, scalars
from endoscope.pages.format import ALIGN, DTYPES, NAMES, Dtype, seal, to_json
from endoscope.values import MAX_DEPTH, PerDatapoint, WholeBatch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as the safetensors header lists it; ``start`` counts from the record's first byte."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(slots=True)
class Record:
    """One encoded record: a datapoint, or a batch of them."""

    idx: int | list[int]
    body: bytes = b""
    """The line after ``"idx"`` and ``"at"``, without braces."""
    buffers: list[Any] = field(default_factory=list)
    """The tensors' bytes in file order, padding included; the arrays keep the tensors alive."""
    nbytes: int = 0
    entries: list[Entry] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """By debugger, why its value could not be stored."""

    @property
    def indices(self) -> list[int]:
        return self.idx if isinstance(self.idx, list) else [self.idx]

    def line(self, at: int) -> bytes:
        """The sealed line of the record when its first byte is at ``at``."""
        return seal(b'{"idx":%s,"at":%d,%s' % (to_json(self.idx).encode(), at, self.body))


def encode_record(idx: int | list[int], outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> Record:
    """Encode one record. ``outputs`` holds a snapshot, or a value that is ours already, per debugger.

    A value that cannot be encoded is left out and becomes a failure in the record's notes.
    """
    record = Record(idx)
    blocks: dict[str, str] = {}
    failures = record.failures
    for name, value in outputs.items():
        try:
            block = _encode_block(name, value, len(record.indices), record.nbytes)
        except Exception as e:  # noqa: BLE001  # the value is the user's, down to the __str__ of a key
            failures[name] = _shortened(f"could not be stored: {type(e).__name__}: {e}")
        else:
            blocks[name] = block.text
            record.buffers += block.buffers
            record.entries += block.entries
            record.nbytes += block.nbytes
    notes = {kind: {n: _shortened(v) if isinstance(v, str) else v for n, v in of.items()} for kind, of in notes.items()}
    record.body = _body(record, blocks, notes, failures)
    while blocks and not _fits(record):
        largest = max(blocks, key=lambda name: len(blocks[name]))
        size = len(blocks.pop(largest)) >> 20
        failures[largest] = f"could not be stored: its text takes {size} MB; return large lists as tensors"
        record.body = _body(record, blocks, notes, failures)
    return record


def _body(record: Record, blocks: Mapping[str, str], notes: Mapping[str, Any], failures: Mapping[str, str]) -> bytes:
    outputs = ",".join(f"{to_json(name)}:{text}" for name, text in blocks.items())
    body = f'"bytes":{record.nbytes},"outputs":{{{outputs}}}'
    if failures:
        notes = {**notes, "failures": {**notes.get("failures", {}), **failures}}
    if notes:
        body += ',"notes":' + to_json(_Encoder(1).encode(notes, "notes", 0))
    return body.encode()


def _fits(record: Record) -> bool:
    """Whether a reader accepts a line with this body; an index takes up to 21 bytes."""
    length = len(record.body) + 24 * len(record.indices) + 256
    return length <= format.MAX_LINE and format.containers(record.body) < format.MAX_CONTAINERS


def _shortened(message: str, most: int = 1000) -> str:
    return message if len(message) <= most else message[: most - 1] + "…"


# ---------------------------------------------------------------- one debugger's block
@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    nbytes: int = 0
    buffers: Sequence[Any] = ()
    entries: Sequence[Entry] = ()


@dataclass(slots=True)
class _Part:
    """One tensor of a block. ``ref`` is its reference in the JSON, which still lacks its place."""

    bytes: Bytes
    ref: dict[str, Any]
    dtype: Dtype
    path: str

    def entry(self, start: int) -> Entry:
        shape = tuple(self.ref["shape"])
        if self.dtype.safetensors == "U8" and self.dtype.torch is not torch.uint8:
            shape = (self.bytes.nbytes,)  # a dtype that safetensors does not know
        return Entry(self.path, self.dtype.safetensors, shape + self.dtype.extra, start, self.bytes.nbytes)


def _encode_block(name: str, value: Any, count: int, start: int) -> _Block:
    """Encode one debugger's value. Its block begins at byte ``start`` of the record."""
    encoder = _Encoder(count)
    tree = encoder.encode(value.wait() if isinstance(value, Snapshot) else value, name, 0)
    if not encoder.parts:
        return _Block(to_json({"value": tree}))
    # Widest elements first: every tensor then starts at a multiple of its own element size without gaps.
    parts = sorted(encoder.parts, key=lambda p: -min(ALIGN, p.dtype.torch.itemsize))
    size = 0
    entries: list[Entry] = []
    for part in parts:
        part.ref["at"] = size
        entries.append(part.entry(start + size))
        size += part.bytes.nbytes
    buffers: list[Any] = [part.bytes for part in parts if part.bytes.nbytes]
    padding = -size % ALIGN
    if padding:
        buffers.append(bytes(padding))
        entries.append(Entry("padding", "U8", (padding,), start + size, padding))
    text = to_json({"at": start, "bytes": size, **_checksums(parts, count), "value": tree})
    return _Block(text, size + padding, buffers, entries)


def _checksums(parts: Sequence[_Part], count: int) -> dict[str, Any]:
    """One checksum of what all datapoints share, and one for each datapoint of its rows."""
    batched = [part.bytes for part in parts if "batch" in part.ref]
    sums: dict[str, Any] = {"sum": format.checksum(part.bytes for part in parts if "batch" not in part.ref)}
    if batched:
        by_datapoint = zip(*(np.split(rows, count) for rows in batched), strict=True)
        sums["sums"] = [format.checksum(rows) for rows in by_datapoint]
    return sums


# ---------------------------------------------------------------- values
_PLAIN = frozenset((str, int, bool, type(None)))


class _Encoder:
    """Encodes one debugger's value: structure and scalars as JSON, tensors as references to ``parts``."""

    def __init__(self, count: int) -> None:
        self.count = count
        """How many datapoints the record holds: a tensor with as many rows is a batch."""
        self.parts: list[_Part] = []

    def encode(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return scalars.encode_float(value)
        if depth > MAX_DEPTH:
            raise ValueError(f"value nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        depth += 1
        if kind is dict:
            return self._dict(value, path, depth)
        if kind is list:
            return self._list(value, path, depth)
        if kind is PerDatapoint:
            return self._per_datapoint(value, path, depth)
        if kind is WholeBatch:
            return self._uncut(value.value, path, depth)
        return scalars.encode(value, lambda v, k: self.encode(v, f"{path}/{k}", depth))

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        items = ((k, self.encode(v, f"{path}/{k}", depth)) for k, v in value.items())
        if "$" not in value and set(map(type, value)) <= {str}:
            return dict(items)
        return {"$": "dict", "items": [[self.encode(k, path, depth), v] for k, v in items]}

    def _list(self, value: Sequence[Any], path: str, depth: int) -> Any:
        if len(value) >= format.MANY_FLOATS and set(map(type, value)) == {float}:
            return scalars.encode_floats(value)
        return [self.encode(v, f"{path}/{i}", depth) for i, v in enumerate(value)]

    def _per_datapoint(self, value: PerDatapoint, path: str, depth: int) -> Any:
        if len(value) != self.count:  # from a layer whose first dimension is not the batch: everybody gets all of it
            return self._uncut([*value], path, depth)
        if _can_be_stacked(value):
            ref = self._tensor(composites.stacked(value), path)
            ref["batch"] = "one"  # in the reference itself: its place is filled in later
            return ref
        return {"$": "each", "values": self._uncut([*value], path, depth)}

    def _uncut(self, value: Any, path: str, depth: int) -> Any:
        """Encode what belongs to the whole batch, or to one datapoint already: no tensor in it is sliced."""
        count, self.count = self.count, 1
        try:
            return self.encode(value, path, depth)
        finally:
            self.count = count

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
            return scalars.encode_array(value)
        try:
            tensor = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
        except TypeError:  # longdouble, which torch does not have
            return scalars.encode_array(value)
        ref = self._tensor(tensor, path)
        ref["numpy"] = True
        return ref

    def _tensor(self, t: torch.Tensor, path: str) -> dict[str, Any]:
        if t.is_nested:
            raise TypeError("a nested tensor cannot be stored; return its to_padded_tensor(0.0)")
        batch = {"batch": "slice"} if self.count > 1 and t.ndim > 0 and t.shape[0] == self.count else {}
        if t.layout is not torch.strided or t.is_quantized:
            kind, parts, facts = composites.take_apart(t)
            return {"$": kind, **facts, "parts": self._uncut(parts, path, 0), **batch}
        name = NAMES.get(t.dtype)
        if name is None:
            raise TypeError(f"tensors of {t.dtype} cannot be stored")
        ref = {"$": "tensor", "dtype": name, "shape": list(t.shape), "at": 0, **batch}
        self.parts.append(_Part(composites.as_bytes(t).numpy(), ref, DTYPES[name], path))
        return ref


def _can_be_stacked(values: Sequence[Any]) -> bool:
    """Whether the values are plain tensors of one shape and dtype."""
    first = values[0]
    return all(
        isinstance(v, torch.Tensor) and v.layout is torch.strided and (v.shape, v.dtype) == (first.shape, first.dtype)
        for v in values
    )
