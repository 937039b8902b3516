"""The safetensors header of a page, which closing a page writes before its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages.encoding import Entry, Record
from endoscope.pages.format import VERSION, to_json


def encode_header(records: Iterable[tuple[str, Sequence[Entry], int]], data_start: int) -> bytes:
    """The first ``data_start`` bytes of a page, from each record's label, entries and offset in the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "endoscope_page": str(VERSION)}}
    copies: dict[str, int] = {}
    for label, entries, at in records:
        for entry in entries:
            base = name = f"{label}/{entry.path}".encode(errors="replace").decode()  # no lone surrogates
            while name in header:
                copies[base] = copies.get(base, 1) + 1
                name = f"{base}~{copies[base]}"
            first = at - data_start + entry.start
            offsets = (first, first + entry.nbytes)
            header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets}
    text = to_json(header).encode()
    if len(text) > data_start - 8:
        raise PageFormatError(f"header of {len(text)} bytes does not fit into the {data_start} reserved for it")
    return (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8)


def header_bytes(record: Record) -> int:
    """An upper bound of the header bytes that a record needs."""
    label = record_label(record.idx)
    return sum(len(label) + _path_bytes(e.path) + 16 * len(e.shape) + 96 for e in record.entries)


def _path_bytes(path: str) -> int:
    """Escapes can double printable ASCII text, and take twelve bytes for any other character."""
    return len(path) * (2 if path.isascii() and path.isprintable() else 12)


def record_label(idx: int | list[int]) -> str:
    """A record's name in the safetensors header: ``17``, ``32-47`` for consecutive indices, ``3,9,4`` otherwise."""
    if not isinstance(idx, list):
        return str(idx)
    if idx == list(range(idx[0], idx[0] + len(idx))):
        return f"{idx[0]}-{idx[-1]}"
    return ",".join(map(str, idx[:8])) + (",..." if len(idx) > 8 else "")
