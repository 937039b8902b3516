"""The bytes of a page: values to blocks and lines, and back. Pure functions; no file is touched here.

docs/page-format.md is the specification. Encoding runs on the thread that called the debugger when the bytes are
ready (measured faster than handing it to the writer thread), decoding on the reader's.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.errors import PageFormatError
from endoscope.pages import scalars
from endoscope.tensors import MAX_DEPTH
from endoscope.values import PerDatapoint, WholeBatch

VERSION = 1
MAX_LINE = 32 << 20
"""Longest line, in bytes, that is written or read. Large lists of numbers belong into tensors."""
MAX_CONTAINERS = 1_000_000
"""Most lists and objects in a line: an empty list takes three bytes there and twenty times that in memory."""
ALIGN = 8
"""Every block starts at a multiple of this, so that any reader can view the bytes without a copy."""

_LINE_END = b',"line":"'
_SEAL = len(_LINE_END) + 16 + len(b'"}')


@dataclass(frozen=True, slots=True)
class Dtype:
    """How a torch dtype lies in a page: its safetensors name, and the dimension that complex numbers add there."""

    torch: torch.dtype
    safetensors: str
    extra: tuple[int, ...] = ()
    numpy: np.dtype[Any] | None = None


def _dtypes() -> dict[str, Dtype]:
    plain = {"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "complex64": "C64",
             "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
             "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"}  # fmt: skip
    table = {name: Dtype(getattr(torch, name), tag, numpy=np.dtype(name)) for name, tag in plain.items()}
    table["complex128"] = Dtype(torch.complex128, "F64", (2,), np.dtype("complex128"))
    table["complex32"] = Dtype(torch.complex32, "F16", (2,))
    byte_sized = {
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e4m3fnuz": "U8",
        "float8_e5m2fnuz": "U8",
        "float8_e8m0fnu": "U8",
    }
    for name, tag in {"bfloat16": "BF16", **byte_sized}.items():
        if hasattr(torch, name):
            table[name] = Dtype(getattr(torch, name), tag)
    return table


DTYPES = _dtypes()
NAMES = {d.torch: name for name, d in DTYPES.items()}


# ---------------------------------------------------------------- lines
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def seal(body: bytes) -> bytes:
    """End a line: ``body`` is a JSON object without its closing brace; its checksum becomes the last member."""
    return b'%s%s%016x"}\n' % (body, _LINE_END, xxhash.xxh3_64_intdigest(body))


def sealed(members: dict[str, Any]) -> bytes:
    return seal(_to_json(members).encode()[:-1])


def is_sealed(line: bytes) -> bool:
    """Whether a line (without its newline) is whole and is what was written."""
    body = line[:-_SEAL]
    return line[-_SEAL:] == b'%s%016x"}' % (_LINE_END, xxhash.xxh3_64_intdigest(body))


def _containers(line: bytes) -> int:
    return line.count(b"[") + line.count(b"{")


def unseal(line: bytes) -> dict[str, Any]:
    """The members of a line; raises `PageFormatError` with the cause when it is not whole."""
    if len(line) > MAX_LINE:
        raise PageFormatError(f"line of {len(line)} bytes, longer than any that is written")
    if not is_sealed(line):
        raise PageFormatError("checksum of the line does not match")
    if _containers(line) > MAX_CONTAINERS:
        raise PageFormatError(f"line of more than {MAX_CONTAINERS} lists and objects")
    try:
        members = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise PageFormatError(f"line is not JSON ({type(e).__name__})") from None
    if not isinstance(members, dict):
        raise PageFormatError("line is not a JSON object")
    return members


# ---------------------------------------------------------------- encoding
@dataclass(slots=True)
class _Part:
    """One tensor on its way into a block."""

    bytes: np.ndarray[Any, Any]
    ref: dict[str, Any]
    dtype: Dtype
    shape: tuple[int, ...]
    path: str


@dataclass(slots=True)
class Entry:
    """One tensor as it will stand in the safetensors header; ``start`` counts from the record's first byte."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(slots=True)
class Record:
    """One encoded record: a datapoint, or a batch of them."""

    idx: int | list[int]
    body: bytes
    """The line after ``"idx"`` and ``"at"``, without braces."""
    buffers: list[Any]
    """The tensors' bytes in file order, padding included; the arrays keep the tensors alive."""
    nbytes: int
    entries: list[Entry] = field(default_factory=list)

    @property
    def indices(self) -> list[int]:
        return self.idx if isinstance(self.idx, list) else [self.idx]

    def line(self, at: int) -> bytes:
        return seal(b'{"idx":%s,"at":%d,%s' % (_to_json(self.idx).encode(), at, self.body))


def encode_record(idx: int | list[int], outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> Record:
    """Encode one record. ``outputs`` is by debugger and already owned (see `endoscope.tensors.snapshot`).

    What cannot be encoded is left out and becomes a failure in the record's notes, so that the rest is kept.
    """
    count = len(idx) if isinstance(idx, list) else 1
    notes = {kind: {n: shortened(v) if isinstance(v, str) else v for n, v in of.items()} for kind, of in notes.items()}
    record = Record(idx, b"", [], 0)
    blocks: dict[str, str] = {}
    failures: dict[str, str] = {}
    for name, value in outputs.items():
        before = record.nbytes, len(record.buffers), len(record.entries)
        encoder = _Encoder(count)
        try:
            blocks[name] = f"{_to_json(name)}:{encoder.finish(encoder.encode(value, name, 0), record)}"
        except Exception as e:  # noqa: BLE001  # the value is the user's, down to the __str__ of a key
            failures[name] = shortened(f"could not be stored: {type(e).__name__}: {e}")
            record.nbytes, buffers, entries = before
            del record.buffers[buffers:], record.entries[entries:]
    while True:
        if failures:
            notes = {**notes, "failures": {**notes.get("failures", {}), **failures}}
        body = '"bytes":%d,"outputs":{%s}' % (record.nbytes, ",".join(blocks.values()))
        if notes:
            body += ',"notes":' + _to_json(_Encoder(1).encode(notes, "notes", 0))
        record.body = body.encode()
        if not blocks or (len(body) + 24 * count + 256 <= MAX_LINE and _containers(record.body) < MAX_CONTAINERS):
            return record
        largest = max(blocks, key=lambda name: len(blocks[name]))
        text = blocks.pop(largest)
        failures[largest] = f"could not be stored: its text takes {len(text) >> 20} MB; return large lists as tensors"


def shortened(message: str, most: int = 1000) -> str:
    """A message that goes into a record's notes."""
    return message if len(message) <= most else message[: most - 1] + "…"


_PLAIN = frozenset((str, int, bool, type(None)))


class _Encoder:
    """Encodes one debugger's value: JSON for structure and scalars, references for tensors."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.parts: list[_Part] = []

    def encode(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
        if depth > MAX_DEPTH:
            raise ValueError(f"value nested deeper than {MAX_DEPTH} levels")
        depth += 1
        if kind is dict:
            if "$" not in value and set(map(type, value)) <= {str}:
                return {k: v if type(v) in _PLAIN else self.encode(v, f"{path}/{k}", depth) for k, v in value.items()}
            items = [[self.encode(k, path, depth), self.encode(v, f"{path}/{k}", depth)] for k, v in value.items()]
            return {"$": "dict", "items": items}
        if kind is list:
            return self.sequence(value, path, depth)
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, np.ndarray):
            return self.array(value, path)
        if kind is PerDatapoint:
            return self.per_datapoint(value, path, depth)
        if kind is WholeBatch:
            return self.uncut(value.value, path, depth)
        return scalars.encode(value, lambda v, k: self.encode(v, f"{path}/{k}", depth))

    def sequence(self, value: Sequence[Any], path: str, depth: int) -> list[Any]:
        kinds = set(map(type, value))
        if kinds <= _PLAIN or (kinds == {float} and math.isfinite(sum(value))):
            return list(value)
        return [self.encode(v, f"{path}/{i}", depth) for i, v in enumerate(value)]

    def per_datapoint(self, value: PerDatapoint, path: str, depth: int) -> Any:
        if len(value) != self.count:  # of a layer whose first dimension is not the batch: all of it, for everyone
            return self.uncut([*value], path, depth)
        first = value[0]
        if isinstance(first, torch.Tensor) and all(
            isinstance(v, torch.Tensor)
            and v.layout is torch.strided
            and (v.shape, v.dtype) == (first.shape, first.dtype)
            for v in value
        ):
            ref = self.tensor(scalars.stacked(value), path)
            ref["batch"] = "one"
            return ref
        return {"$": "each", "values": self.uncut([*value], path, depth)}

    def uncut(self, value: Any, path: str, depth: int) -> Any:
        """Encode what belongs to the whole batch, or to one datapoint already: no tensor in it is sliced."""
        count, self.count = self.count, 1
        try:
            return self.encode(value, path, depth)
        finally:
            self.count = count

    def array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.kind in "biufc" and value.dtype.itemsize <= 16:
            try:
                ref = self.tensor(torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False)), path)
            except TypeError:  # longdouble, which torch does not have
                return scalars.encode_array(value)
            ref["numpy"] = True  # in the reference itself: its place is filled in later
            return ref
        return scalars.encode_array(value)

    def tensor(self, t: torch.Tensor, path: str) -> dict[str, Any]:
        batched = self.count > 1 and t.ndim > 0 and t.shape[0] == self.count
        if t.layout is not torch.strided or t.is_quantized:
            return {**self.composite(t, path), **({"batch": "slice"} if batched else {})}
        name = NAMES.get(t.dtype)
        if name is None:
            raise TypeError(f"tensors of {t.dtype} cannot be stored")
        dtype = DTYPES[name]
        if dtype.numpy is not None:
            data = t.numpy().reshape(-1).view(np.uint8)
        else:
            data = scalars.as_bytes(t).numpy()
        ref: dict[str, Any] = {"$": "tensor", "dtype": name, "shape": list(t.shape), "at": 0}
        if batched:
            ref["batch"] = "slice"
        self.parts.append(_Part(data, ref, dtype, tuple(t.shape), path))
        return ref

    def composite(self, t: torch.Tensor, path: str) -> dict[str, Any]:
        """A sparse or quantised tensor as its plain component tensors; these belong to the whole batch."""
        kind, parts, about = scalars.take_apart(t)
        return {"$": kind, **about, "parts": self.uncut(parts, path, 0)}

    def finish(self, tree: Any, record: Record) -> str:
        """Lay the parts out behind what ``record`` holds already; returns the block as JSON."""
        if not self.parts:
            return '{"value":%s}' % _to_json(tree)
        # Widest elements first: then every tensor starts at a multiple of its own element size without gaps.
        if len(self.parts) > 1:
            self.parts.sort(key=lambda p: -min(ALIGN, p.dtype.torch.itemsize))
        start = record.nbytes
        at = 0
        shared = xxhash.xxh3_64()
        each = [xxhash.xxh3_64() for _ in range(self.count)] if any("batch" in p.ref for p in self.parts) else []
        for p in self.parts:
            size = p.bytes.nbytes
            p.ref["at"] = at
            if "batch" in p.ref:
                step = size // self.count
                rows = p.bytes.data
                for j, digest in enumerate(each):
                    digest.update(rows[j * step : (j + 1) * step])
            else:
                shared.update(p.bytes.data)
            if size:
                record.buffers.append(p.bytes)
            shape = p.shape if p.dtype.safetensors != "U8" or p.dtype.torch is torch.uint8 else (size,)
            record.entries.append(Entry(p.path, p.dtype.safetensors, shape + p.dtype.extra, start + at, size))
            at += size
        text = f'"at":{start},"bytes":{at},"sum":"{shared.hexdigest()}"'
        if each:
            text += ',"sums":["%s"]' % '","'.join(d.hexdigest() for d in each)
        if pad := -at % ALIGN:
            record.buffers.append(bytes(pad))
            record.entries.append(Entry("padding", "U8", (pad,), start + at, pad))
        record.nbytes = start + at + pad
        return '{%s,"value":%s}' % (text, _to_json(tree))


# ---------------------------------------------------------------- header
def encode_header(entries: Sequence[tuple[str, Entry, int]], data_start: int) -> bytes:
    """The first ``data_start`` bytes of a page: a safetensors header of (label, entry, the record's file offset)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "endoscope_page": str(VERSION)}}
    taken: dict[str, int] = {}
    for label, e, at in entries:
        base = name = f"{label}/{e.path}".encode(errors="replace").decode()  # safetensors refuses lone surrogates
        while name in header:
            taken[base] = taken.get(base, 1) + 1
            name = f"{base}~{taken[base]}"
        first = at - data_start + e.start
        header[name] = {"dtype": e.dtype, "shape": e.shape, "data_offsets": (first, first + e.nbytes)}
    text = _to_json(header).encode()
    if len(text) > data_start - 8:
        raise PageFormatError(f"header of {len(text)} bytes does not fit into the {data_start} reserved for it")
    return (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8)


def header_bytes(record: Record, label: str) -> int:
    """At most how many header bytes a record will take."""
    total = 0
    for e in record.entries:  # escapes can double ASCII text, and make twelve bytes of another character
        path = len(e.path) * (2 if e.path.isascii() and e.path.isprintable() else 12)
        total += path + len(label) + 16 * len(e.shape) + 96
    return total


def label(idx: int | list[int]) -> str:
    """How a record is called in the safetensors header: ``17``, ``32-47`` for a run of indices, ``3,9,4`` else."""
    if not isinstance(idx, list):
        return str(idx)
    if idx == list(range(idx[0], idx[0] + len(idx))):
        return f"{idx[0]}-{idx[-1]}"
    return ",".join(map(str, idx[:8])) + (",..." if len(idx) > 8 else "")


# ---------------------------------------------------------------- decoding
_NESTED = frozenset((dict, list))


@dataclass(slots=True)
class Span:
    """Bytes of a block that one tensor reference points to; ``row`` is what one datapoint of the batch takes."""

    ref: dict[str, Any]
    start: int
    nbytes: int
    row: int | None


def spans(tree: Any, block_bytes: int, count: int) -> list[Span]:
    """Every tensor reference of a block, checked: inside it, of the size its shape and dtype say, none overlapping."""
    found: list[Span] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is list:
            inside: Collection[Any] = node
        elif type(node) is not dict:
            continue
        elif node.get("$") == "tensor":
            found.append(_span(node, block_bytes, count))
            continue
        else:
            inside = node.values()
        if not _NESTED.isdisjoint(map(type, inside)):  # a long list of numbers is passed over as a whole
            stack.extend(inside)
    if len(found) > 1:
        found.sort(key=lambda s: (s.start, s.nbytes))
    end = 0
    for s in found:
        if s.start < end:
            raise PageFormatError(f"tensor at {s.start} overlaps the one before it")
        end = s.start + s.nbytes
    return found


def _span(ref: dict[str, Any], block_bytes: int, count: int) -> Span:
    dtype, shape, at = ref.get("dtype"), ref.get("shape"), ref.get("at")
    if type(dtype) is not str or dtype not in DTYPES:
        raise PageFormatError(f"tensor of unknown dtype {str(dtype)[:40]!r}")
    if type(shape) is not list or len(shape) > MAX_DEPTH:
        raise PageFormatError("tensor without a usable shape")
    size = DTYPES[dtype].torch.itemsize
    for n in shape:
        if type(n) is not int or not 0 <= n < 1 << 48:
            raise PageFormatError("tensor without a usable shape")
        size *= n
    if type(at) is not int or at < 0 or at + size > block_bytes:
        raise PageFormatError(f"tensor of {size} bytes at {at} lies outside its block of {block_bytes}")
    batch = ref.get("batch")
    if batch is None:
        return Span(ref, at, size, None)
    if batch not in ("slice", "one") or count < 2 or not shape or shape[0] != count:
        raise PageFormatError("tensor marked as a batch, but it is none")
    return Span(ref, at, size, size // count)


def decode(tree: Any, tensor_at: Callable[[dict[str, Any]], torch.Tensor], row: int | None) -> Any:
    """Rebuild a value. ``tensor_at`` gives a reference's tensor, already cut to ``row``; None is the whole batch."""
    try:
        return _Decoder(tensor_at, row).decode(tree, 0)
    except RecursionError:
        raise PageFormatError("value nested too deeply") from None


class _Decoder:
    def __init__(self, tensor_at: Callable[[dict[str, Any]], torch.Tensor], row: int | None) -> None:
        self.tensor_at = tensor_at
        self.row = row

    def decode(self, node: Any, depth: int) -> Any:
        if depth > 4 * MAX_DEPTH:
            raise PageFormatError("value nested too deeply")
        if type(node) is list:
            if _NESTED.isdisjoint(map(type, node)):
                return node.copy()
            return [self.decode(v, depth + 1) if type(v) in _NESTED else v for v in node]
        if type(node) is not dict:
            return node
        kind = node.get("$")
        if kind is None:
            if _NESTED.isdisjoint(map(type, node.values())):
                return node.copy()
            return {k: self.decode(v, depth + 1) if type(v) in _NESTED else v for k, v in node.items()}
        try:
            if kind == "tensor":
                t = self.tensor_at(node)
                return t.numpy() if node.get("numpy") else t
            if kind == "each":
                if self.row is None:
                    return PerDatapoint(self.decode(node["values"], depth + 1))
                return self.decode(node["values"][self.row], depth + 1)
            if kind in scalars.COMPOSITES:
                parts = {k: self.decode(v, depth + 1) for k, v in node["parts"].items()}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch says of some of these that they are young, or old
                    whole = scalars.put_together(node, parts)
                    return whole if self.row is None or "batch" not in node else scalars.one_row(whole, self.row)
            return scalars.decode(node, lambda v: self.decode(v, depth + 1))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as e:
            if isinstance(e, PageFormatError):
                raise
            raise PageFormatError(f"malformed {str(kind)[:40]!r} value: {e}") from None
