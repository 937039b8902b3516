"""The safetensors header of a page: what stands before its tensors once it is closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages.encoding import Entry, Record
from endoscope.pages.format import VERSION, to_json

Blocks = Sequence[tuple[int, Sequence[Entry]]]
"""What a record holds: see `Record.blocks`."""


def encode_header(records: Iterable[tuple[str, Blocks, int]], data_start: int) -> bytes:
    """The first ``data_start`` bytes of a page: a safetensors header of (label, blocks, the record's file offset)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "endoscope_page": str(VERSION)}}
    taken: dict[str, int] = {}
    for label, e, at in (
        (label, e, at + start) for label, blocks, at in records for start, each in blocks for e in each
    ):
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
    return sum(_header_bytes(e.path, len(e.shape)) + len(label) for _, each in record.blocks for e in each)


@lru_cache(4096)
def _header_bytes(path: str, dimensions: int) -> int:
    # Escapes can double ASCII text, and make twelve bytes of another character.
    return len(path) * (2 if path.isascii() and path.isprintable() else 12) + 16 * dimensions + 96


def label(idx: int | list[int]) -> str:
    """How a record is called in the safetensors header: ``17``, ``32-47`` for a run of indices, ``3,9,4`` else."""
    if not isinstance(idx, list):
        return str(idx)
    if idx == list(range(idx[0], idx[0] + len(idx))):
        return f"{idx[0]}-{idx[-1]}"
    return ",".join(map(str, idx[:8])) + (",..." if len(idx) > 8 else "")
