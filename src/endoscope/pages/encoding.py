"""Encoding: a record's values to the blocks of a page and the body of its line.

Runs on the writer thread. No file is touched here; what is kept between two records is how the last ones looked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.capturing.snapshot import Snapshot
from endoscope.pages import format, scalars
from endoscope.pages.format import ALIGN, DTYPES, NAMES, Dtype, seal, to_json
from endoscope.values import MAX_DEPTH, PerDatapoint, Summary, WholeBatch, tensors_in


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
    """One tensor as it will stand in the safetensors header; ``start`` counts from its block's first byte."""

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
    blocks: list[tuple[int, Sequence[Entry]]] = field(default_factory=list)
    """Where each block begins, counted from the record's first byte, and what it holds."""

    @property
    def indices(self) -> list[int]:
        return self.idx if isinstance(self.idx, list) else [self.idx]

    def line(self, at: int) -> bytes:
        idx = to_json(self.idx).encode() if isinstance(self.idx, list) else b"%d" % self.idx
        return seal(b'{"idx":%s,"at":%d,%s' % (idx, at, self.body))


def encode_record(idx: int | list[int], outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> Record:
    """Encode one record. ``outputs`` is by debugger: snapshots, or values that are owned already.

    What cannot be encoded is left out and becomes a failure in the record's notes, so that the rest is kept.
    """
    count = len(idx) if isinstance(idx, list) else 1
    notes = {kind: {n: shortened(v) if isinstance(v, str) else v for n, v in of.items()} for kind, of in notes.items()}
    record = Record(idx, b"", [], 0)
    blocks: dict[str, str] = {}
    failures: dict[str, str] = {}
    for name, value in outputs.items():
        before = record.nbytes, len(record.buffers), len(record.blocks)
        try:
            block = _by_form(value, name, count, record) if type(value) is Snapshot else None
            if block is None:
                whole = value.wait() if type(value) is Snapshot else value
                block = _by_plan(whole, name, count, record)
                if block is None:
                    encoder = _Encoder(count)
                    block = encoder.finish(encoder.encode(whole, name, 0), record)
            blocks[name] = f"{_quoted(name)}:{block}"
        except Exception as e:  # noqa: BLE001  # the value is the user's, down to the __str__ of a key
            failures[name] = shortened(f"could not be stored: {type(e).__name__}: {e}")
            record.nbytes, buffers, kept = before
            del record.buffers[buffers:], record.blocks[kept:]
    while True:
        if failures:
            notes = {**notes, "failures": {**notes.get("failures", {}), **failures}}
        body = '"bytes":%d,"outputs":{%s}' % (record.nbytes, ",".join(blocks.values()))
        if notes:
            body += ',"notes":' + to_json(_Encoder(1).encode(notes, "notes", 0))
        record.body = body.encode()
        length = len(body) + 24 * count + 256
        if length < format.MAX_CONTAINERS or not blocks:
            return record
        if length <= format.MAX_LINE and format.containers(record.body) < format.MAX_CONTAINERS:
            return record
        largest = max(blocks, key=lambda name: len(blocks[name]))
        text = blocks.pop(largest)
        failures[largest] = f"could not be stored: its text takes {len(text) >> 20} MB; return large lists as tensors"


def shortened(message: str, most: int = 1000) -> str:
    """A message that goes into a record's notes."""
    return message if len(message) <= most else message[: most - 1] + "…"


_PLAIN = frozenset((str, int, bool, type(None)))


_quoted = lru_cache(4096)(to_json)  # of names, which come again with every record


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the blocks of a debugger have in common as long as it returns the same keys, dtypes and shapes."""

    text: str
    """The block as JSON, with places for where it begins, its checksum, and numbers and texts in their order."""
    nbytes: int
    padding: bytes | None
    entries: tuple[Entry, ...]


_plans: dict[tuple[Any, ...], _Plan | None] = {}
_MOST_PLANS, _MOST_TENSORS = 256, 64
"""Of how many plans, and of how many tensors in one: they live as long as the process. Writers on several threads share
them; the worst that a race does is to make a plan twice."""
_STRIDED = torch.strided
_TEXT, _INNER, _END = object(), object(), object()  # in the key of a plan


def _by_plan(value: Any, name: str, count: int, record: Record) -> str | None:
    """The block of what most debuggers return: a dict, perhaps of dicts, of plain tensors of one dtype, of a batch all
    along their first dimension. It is what `_Encoder` makes, in a fraction of its time; its bytes are added to the
    record. None for any other value."""
    if type(value) is not dict:
        return None
    key: list[Any] = [name, count]
    tensors: list[torch.Tensor] = []
    texts: list[str] = []
    if not _described(value, key, tensors, texts, count, 1) or not 0 < len(tensors) <= _MOST_TENSORS:
        return None
    known = tuple(key)
    plan = _plans.get(known)
    if plan is None:
        if known not in _plans:
            if len(_plans) >= _MOST_PLANS:
                _plans.clear()
            plan = _plans[known] = _planned(value, name, count)
        if plan is None:
            return None
    return _laid_out(plan, tensors, texts, count, record)


_forms: dict[tuple[Any, ...], tuple[_Plan, list[str]] | None] = {}
"""As `_plans`, of forms: with the texts, which are always the same."""


def _by_form(captured: Snapshot, name: str, count: int, record: Record) -> str | None:
    """What `_by_plan` makes of a filled form, without filling it. None where there is no form, or no plan of it."""
    if captured.form is None:
        return None
    tensor = captured.value
    key = (captured.form, name, count, tensor.dtype, tensor.shape)
    known = _forms.get(key)
    if known is None:
        if key not in _forms:
            if len(_forms) >= _MOST_PLANS:
                _forms.clear()
            whole, texts = captured.form.filled(tensor), list[str]()
            plan = _planned(whole, name, count) if _described(whole, [], [], texts, count, 1) else None
            known = _forms[key] = None if plan is None else (plan, texts)
        if known is None:
            return None
    return _laid_out(known[0], [tensor], known[1], count, record)


def _laid_out(plan: _Plan, tensors: list[torch.Tensor], texts: list[str], count: int, record: Record) -> str:
    """Add the tensors to the record; returns the block as JSON."""
    arrays = [t.numpy() for t in tensors]
    if count > 1:
        sums = '","'.join([_sum_of([a[j] for a in arrays]) for j in range(count)])
    else:
        sums = _sum_of(arrays)
    record.buffers += arrays
    start = record.nbytes
    record.nbytes = start + plan.nbytes
    if plan.padding is not None:
        record.buffers.append(plan.padding)
    record.blocks.append((start, plan.entries))
    return plan.text % (start, sums, *texts)


def _sum_of(arrays: list[np.ndarray[Any, Any]]) -> str:
    if len(arrays) == 1:
        return xxhash.xxh3_64_hexdigest(arrays[0].data)
    digest = xxhash.xxh3_64()
    for one in arrays:
        digest.update(one.data)
    return digest.hexdigest()


def _described(
    value: dict[Any, Any], key: list[Any], tensors: list[torch.Tensor], texts: list[str], count: int, depth: int
) -> bool:
    """Take a dict apart into what its plan is known by, its tensors, and its other values as JSON; False for one that
    only `_Encoder` can encode."""
    if "$" in value or depth > MAX_DEPTH:
        return False
    for name, v in value.items():
        if type(name) is not str:
            return False
        kind = type(v)
        if kind is torch.Tensor:
            if v.layout is not _STRIDED or not v.is_contiguous():
                return False
            if count > 1 and (v.ndim == 0 or v.shape[0] != count):
                return False
            key += (name, v.dtype, v.shape)
            tensors.append(v)
        elif kind is dict:
            key += (name, _INNER)
            if not _described(v, key, tensors, texts, count, depth + 1):
                return False
            key.append(_END)
        else:
            key += (name, _TEXT)
            if kind is int or (kind is float and math.isfinite(v)):
                texts.append(repr(v))  # as JSON has it
            elif kind is str and len(v) < 100:
                texts.append(_quoted(v))
            elif kind is Summary:
                texts.append(_summary(v.of))
            else:
                encoder = _Encoder(count)
                tree = encoder.encode(v, name, depth)
                if encoder.parts:
                    return False
                texts.append(to_json(tree))
    return True


def _planned(value: dict[str, Any], name: str, count: int) -> _Plan | None:
    """None where the layout is not simply that of the tensors one behind the other."""
    entries: list[Entry] = []
    dtypes: set[torch.dtype] = set()
    batch = ',"batch":"slice"' if count > 1 else ""
    at = 0

    def members(value: dict[str, Any], path: str) -> str:
        nonlocal at
        found = []
        for key, v in value.items():
            if type(v) is dict:
                text = members(v, f"{path}/{key}")
            elif type(v) is torch.Tensor:
                known = NAMES[v.dtype]
                shape = to_json(list(v.shape))
                text = f'{{"$":"tensor","dtype":"{known}","shape":{shape},"at":{at}{batch}}}'
                entries.append(Entry(f"{path}/{key}", DTYPES[known].safetensors, tuple(v.shape), at, v.nbytes))
                dtypes.add(v.dtype)
                at += v.nbytes
            else:
                text = "%s"
            found.append(f"{to_json(key).replace('%', '%%')}:{text}")
        return "{%s}" % ",".join(found)

    if any(NAMES.get(t.dtype) is None or DTYPES[NAMES[t.dtype]].numpy is None for t in tensors_in(value)):
        return None
    text = members(value, name)
    if len(dtypes) > 1 or any(dtype.is_complex for dtype in dtypes) or any(0 in e.shape for e in entries):
        return None
    if pad := -at % ALIGN:
        entries.append(Entry("padding", "U8", (pad,), at, pad))
    sums = f'"{xxhash.xxh3_64_hexdigest(b"")}","sums":["%s"]' if count > 1 else '"%s"'
    text = f'{{"at":%d,"bytes":{at},"sum":{sums},"value":{text}}}'
    return _Plan(text, at + pad, bytes(pad) if pad else None, tuple(entries))


@lru_cache(256)
def _summary(of: str) -> str:
    return to_json(_Encoder(1).encode(Summary(of), "", 0))


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

    def sequence(self, value: Sequence[Any], path: str, depth: int) -> Any:
        kinds = set(map(type, value))
        if kinds == {float}:
            if len(value) >= format.MANY_FLOATS:
                return scalars.encode_floats(value)
            if math.isfinite(sum(value)):
                return list(value)
        elif kinds <= _PLAIN:
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
            return '{"value":%s}' % to_json(tree)
        # Widest elements first: then every tensor starts at a multiple of its own element size without gaps.
        if len(self.parts) > 1:
            self.parts.sort(key=lambda p: -min(ALIGN, p.dtype.torch.itemsize))
        start = record.nbytes
        entries: list[Entry] = []
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
            entries.append(Entry(p.path, p.dtype.safetensors, shape + p.dtype.extra, at, size))
            at += size
        text = f'"at":{start},"bytes":{at},"sum":"{shared.hexdigest()}"'
        if each:
            text += ',"sums":["%s"]' % '","'.join(d.hexdigest() for d in each)
        if pad := -at % ALIGN:
            record.buffers.append(bytes(pad))
            entries.append(Entry("padding", "U8", (pad,), at, pad))
        record.blocks.append((start, entries))
        record.nbytes = start + at + pad
        return '{%s,"value":%s}' % (text, to_json(tree))
