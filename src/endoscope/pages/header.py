"""The safetensors header of a page: what stands before its tensors once it is closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages.encoding import Entry, Record
from endoscope.pages.format import VERSION, to_json


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
    text = to_json(header).encode()
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
