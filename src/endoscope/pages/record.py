"""One record: its line decoded, and the bytes of its blocks fetched and verified when they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.errors import PageFormatError
from endoscope.pages import decoding, format
from endoscope.pages.files import PageFiles, read_at
from endoscope.pages.scan import read_indices

_SMALL_BLOCK = 64 << 10  # below this one read of the whole batch is cheaper than one for each tensor


class RecordReader:
    """Decodes one record's line and fetches its blocks."""

    def __init__(self, files: PageFiles, line: bytes) -> None:
        self.files = files
        self.members = format.unseal(line)
        self.indices = read_indices(self.members)
        at, outputs = self.members.get("at"), self.members.get("outputs")
        if type(at) is not int or at < files.data_start or not isinstance(outputs, dict):
            raise PageFormatError("line without its outputs")
        self.at: int = at
        self.outputs: dict[str, Any] = outputs

    @property
    def end(self) -> int:
        """Where its bytes end in the page's tensors."""
        size = self.members.get("bytes")
        if type(size) is not int or size < 0:
            raise PageFormatError("line without the size of its record")
        return self.at + size

    @property
    def notes(self) -> dict[str, Any]:
        notes = decoding.decode(self.members.get("notes", {}), _no_tensor, None)
        if not (isinstance(notes, dict) and all(isinstance(v, dict) for v in notes.values())):
            raise PageFormatError("notes are malformed")
        return notes

    def read(self, name: str, row: int | None) -> Any:
        """One debugger's value: for datapoint ``row`` of the record, or as the whole batch was given."""
        block = self.outputs[name]
        if not isinstance(block, dict) or "value" not in block:
            raise PageFormatError(f"outputs of {name!r} are malformed")
        count = len(self.indices)
        if count == 1:
            row = None
        if "bytes" not in block:
            return decoding.decode(block["value"], _no_tensor, row)
        start, size = block.get("at"), block["bytes"]
        if type(start) is not int or type(size) is not int or start < 0 or size < 0:
            raise PageFormatError(f"outputs of {name!r} have no place")
        spans = decoding.spans(block["value"], size, count)
        by_ref = self._fetch(block, self.at + start, size, spans, row)
        return decoding.decode(block["value"], lambda ref: by_ref[id(ref)], row)

    def size(self, name: str) -> int:
        """The bytes of the tensors that one datapoint's value of a debugger takes."""
        block = self.outputs[name]
        size = block.get("bytes", 0) if isinstance(block, dict) else 0
        if not size:
            return 0
        if type(size) is not int or size < 0:
            raise PageFormatError(f"outputs of {name!r} have no place")
        spans = decoding.spans(block.get("value"), size, len(self.indices))
        return sum(s.nbytes if s.row is None else s.row for s in spans)

    def _fetch(
        self,
        block: dict[str, Any],
        at: int,
        size: int,
        spans: list[decoding.Span],
        row: int | None,
    ) -> dict[int, torch.Tensor]:
        """Read and verify the bytes that ``row`` needs, and make tensors of them."""
        batched = any(s.row is not None for s in spans)
        piecewise = row is not None and batched and size > _SMALL_BLOCK
        whole = None if piecewise else read_at(self.files.data, at, size)
        shared = xxhash.xxh3_64()
        rows = {j: xxhash.xxh3_64() for j in (range(len(self.indices)) if row is None else [row])} if batched else {}
        made: dict[int, torch.Tensor] = {}
        for s in spans:
            first, length = s.start, s.nbytes
            if s.row is not None and row is not None:
                first, length = s.start + row * s.row, s.row
            data = read_at(self.files.data, at + first, length) if whole is None else whole[first : first + length]
            if s.row is None:
                shared.update(data.data)
            elif row is not None:
                rows[row].update(data.data)
            else:
                for j, digest in rows.items():
                    digest.update(data.data[j * s.row : (j + 1) * s.row])
            made[id(s.ref)] = _tensor(s.ref, data, cut=s.row is not None and row is not None)
        if shared.hexdigest() != block.get("sum"):
            raise PageFormatError("checksum of the tensors does not match")
        sums = block.get("sums")
        if rows and not (
            isinstance(sums, list)
            and len(sums) == len(self.indices)
            and all(d.hexdigest() == sums[j] for j, d in rows.items())
        ):
            raise PageFormatError("checksum of the tensors does not match")
        return made


def _tensor(ref: dict[str, Any], data: np.ndarray[Any, Any], *, cut: bool) -> torch.Tensor:
    dtype = format.DTYPES[ref["dtype"]]
    shape = ref["shape"]
    if cut:
        shape = shape[1:] if ref["batch"] == "one" else [1, *shape[1:]]
    if dtype.torch is torch.complex128 and data.ctypes.data % 16:
        data = data.copy()  # a block begins at a multiple of 8, and these want 16
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
