"""One record: its decoded line, and its values, whose bytes are read and verified when they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from endoscope.errors import PageFormatError
from endoscope.pages import format
from endoscope.pages.decoding import decode
from endoscope.pages.files import PageFiles, read_at
from endoscope.pages.scan import read_indices
from endoscope.pages.spans import Span, find_spans

_SMALL_BLOCK = 64 << 10  # up to here one read of the batch is cheaper than one read per tensor
Bytes = np.ndarray[Any, Any]


class RecordReader:
    """Decodes one record's line and reads its blocks."""

    def __init__(self, files: PageFiles, line: bytes) -> None:
        self.files = files
        self._members = format.unseal(line)
        self.indices = read_indices(self._members)
        at, outputs = self._members.get("at"), self._members.get("outputs")
        if type(at) is not int or at < files.data_start or not isinstance(outputs, dict):
            raise PageFormatError("line without its outputs")
        self._at: int = at
        self.outputs: dict[str, Any] = outputs
        """By debugger name the block, which is not checked yet."""

    @property
    def end(self) -> int:
        """Where its bytes end in the page's tensors."""
        size = self._members.get("bytes")
        if type(size) is not int or size < 0:
            raise PageFormatError("line without the size of its record")
        return self._at + size

    @property
    def notes(self) -> dict[str, Any]:
        notes = decode(self._members.get("notes", {}), _no_tensor, None)
        if not (isinstance(notes, dict) and all(isinstance(v, dict) for v in notes.values())):
            raise PageFormatError("notes are malformed")
        return notes

    def read(self, name: str, row: int | None) -> Any:
        """One debugger's value for datapoint ``row`` of the record; None is the value of the complete batch."""
        block = self._block(name)
        if "value" not in block:
            raise PageFormatError(f"outputs of {name!r} are malformed")
        count = len(self.indices)
        if count == 1:
            row = None
        if "bytes" not in block:
            return decode(block["value"], _no_tensor, row)
        start, size = block.get("at"), _block_size(name, block)
        if type(start) is not int or start < 0:
            raise PageFormatError(f"outputs of {name!r} have no place")
        spans = find_spans(block["value"], size, count)
        parts = self._fetch(self._at + start, size, spans, row)
        _verify(block, spans, parts, row, count)
        tensors = {id(span.ref): _tensor(span, data, row) for span, data in zip(spans, parts, strict=True)}
        return decode(block["value"], lambda ref: tensors[id(ref)], row)

    def size(self, name: str) -> int:
        """The bytes of the tensors that `read` fetches for one datapoint."""
        block = self._block(name)
        size = _block_size(name, block) if block.get("bytes") else 0
        spans = find_spans(block.get("value"), size, len(self.indices)) if size else []
        return sum(span.part(0)[1] for span in spans)

    def _block(self, name: str) -> dict[str, Any]:
        block = self.outputs[name]
        if not isinstance(block, dict):
            raise PageFormatError(f"outputs of {name!r} are malformed")
        return block

    def _fetch(self, at: int, size: int, spans: list[Span], row: int | None) -> list[Bytes]:
        """The bytes of each span that ``row`` needs."""
        places = [span.part(row) for span in spans]
        if row is not None and size > _SMALL_BLOCK and any(span.row is not None for span in spans):
            return [read_at(self.files.data, at + start, nbytes) for start, nbytes in places]
        block = read_at(self.files.data, at, size)
        return [block[start : start + nbytes] for start, nbytes in places]


def _block_size(name: str, block: dict[str, Any]) -> int:
    size = block["bytes"]
    if type(size) is not int or size < 0:
        raise PageFormatError(f"outputs of {name!r} have no place")
    return size


def _verify(block: dict[str, Any], spans: list[Span], parts: list[Bytes], row: int | None, count: int) -> None:
    """Check the bytes that all datapoints share, and the rows that were read."""
    shared = [part for span, part in zip(spans, parts, strict=True) if span.row is None]
    batched = [part for span, part in zip(spans, parts, strict=True) if span.row is not None]
    valid = format.checksum(shared) == block.get("sum")
    if batched:
        sums = block.get("sums")
        valid = valid and isinstance(sums, list) and len(sums) == count and _rows_are_valid(batched, sums, row)
    if not valid:
        raise PageFormatError("checksum of the tensors does not match")


def _rows_are_valid(batched: list[Bytes], sums: list[Any], row: int | None) -> bool:
    if row is not None:
        return bool(format.checksum(batched) == sums[row])
    by_datapoint = zip(*(np.split(part, len(sums)) for part in batched), strict=True)
    return [format.checksum(rows) for rows in by_datapoint] == sums


def _tensor(span: Span, data: Bytes, row: int | None) -> torch.Tensor:
    dtype = format.DTYPES[span.ref["dtype"]]
    shape = span.ref["shape"]
    if row is not None and span.row is not None:
        shape = shape[1:] if span.ref["batch"] == "one" else [1, *shape[1:]]
    if dtype.torch is torch.complex128 and data.ctypes.data % 16:
        data = data.copy()  # blocks begin at a multiple of 8, and torch requires 16
    try:
        if not len(data):
            return torch.empty(shape, dtype=dtype.torch)
        if dtype.numpy is not None:
            return torch.from_numpy(data.view(dtype.numpy).reshape(shape))
        return torch.frombuffer(data, dtype=dtype.torch).reshape(shape)
    except (RuntimeError, ValueError) as e:
        raise PageFormatError(f"tensor of the shape {str(shape)[:80]}: {e}") from None


def _no_tensor(ref: dict[str, Any]) -> torch.Tensor:
    raise PageFormatError("tensor in a place that has none")
