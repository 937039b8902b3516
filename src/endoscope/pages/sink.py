"""Sinks: where the writer thread puts records, here into safetensors pages with rotation at the page size.

Runs on the writer thread only. A record that cannot be written is told by `write`; what was written before stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from endoscope.capturing.snapshot import Snapshot
from endoscope.pages import catalogue, header, page
from endoscope.pages.encoding import Record, encode_record


@dataclass(slots=True)
class Captured:
    """A record as the debuggers gave it; a device may still be delivering its bytes. Nothing in it changes."""

    idx: int | list[int]
    outputs: Mapping[str, Snapshot]
    notes: Mapping[str, Any]
    nbytes: int
    dropped: int = 0
    """How many were dropped before it, because the queue was full."""

    def encode(self) -> Record:
        return encode_record(self.idx, self.outputs, self.notes)

    def values(self) -> dict[str, Any]:
        """By debugger, when all bytes are here."""
        return {name: seen.wait() for name, seen in self.outputs.items()}


Lost = tuple[BaseException, int]
"""Why a record was lost, and how many had been dropped before it."""


class PageSink(Protocol):
    """Where records go in the writer thread: safetensors pages, or pickle pages."""

    unsaved: int
    """Records that stay in memory, also after `write`, until `flush` or a full page."""

    def append(self, record: Captured) -> None:
        """Take one record. It may wait for `write`."""

    def write(self) -> list[Lost]:
        """Hand what waits to the kernel; returns what could not be written."""

    def flush(self) -> None: ...
    def close(self, *, dropped: int) -> None: ...


class SafetensorsSink:
    """Records into ``page_N.safetensors`` and ``page_N.jsonl``, a new pair whenever the page size would be passed."""

    unsaved = 0

    def __init__(self, folder: Path, *, page_size: int, rank: int | None, first_page: int = 0) -> None:
        self.folder = folder
        self.page_size = page_size
        self.rank = rank
        self._page: page.Page | None = None
        self._next = first_page
        self._room = 16 << 10
        self._catalogue = folder / page.catalogue_name(rank)
        self._lost: list[Lost] = []

    def append(self, captured: Captured) -> None:
        record = captured.encode()
        if captured.dropped:
            record.body += b',"dropped":%d' % captured.dropped
        entries = header.header_bytes(record, header.label(record.idx))
        size = record.nbytes + len(record.body) + 128
        p = self._page
        if p is not None:
            no_room = p.header_size + entries > p.data_start
            if no_room or not p.usable or p.data_start + p.size + size > self.page_size:
                self._close_page(dropped=0)
                p = None
                self._room *= 4 if no_room else 1
        if p is None:
            # The header is written last and its room reserved first: for as many records like this one as a page
            # holds, but for small records no more than is sure to be used; it grows with the pages that use it up.
            expected = entries * self.page_size // (size + entries)
            room = 512 + max(entries, min(expected, max(self._room, record.nbytes)))
            p = self._page = self._new_page(data_start=-(-room // 64) * 64)
        p.append(record, captured.dropped)
        p.header_size += entries

    def _new_page(self, data_start: int) -> page.Page:
        while True:
            number, self._next = self._next, self._next + 1
            with contextlib.suppress(FileExistsError):  # another debugger writes into this folder, too
                return page.Page(self.folder, number, self.rank, data_start=data_start)

    def write(self) -> list[Lost]:
        if self._page is not None:
            self._lost += self._page.write()
        lost, self._lost = self._lost, []
        return lost

    def flush(self) -> None:
        """Nothing to do."""

    def _close_page(self, *, dropped: int) -> None:
        p, self._page = self._page, None
        if p is None:
            return
        self._lost += p.write()
        p.close(dropped=dropped)
        page.sync_folder(self.folder)
        if not p.usable:
            return  # it has a torn end and no closing line: readers go through its lines
        info = catalogue.PageInfo(p.name, dropped + p.dropped, data_start=p.data_start)
        with open(self._catalogue, "ab") as f:
            f.write(catalogue.encode(catalogue.of_page(info, p.indices, p.counts, p.starts, p.ends)))

    def close(self, *, dropped: int) -> None:
        """Close the page, and put one line for all pages in place of the catalogue's many."""
        self._close_page(dropped=dropped)
        lines = catalogue.decode_all(self._catalogue.read_bytes().split(b"\n")) if self._catalogue.exists() else []
        if len(lines) > 1:
            part = self._catalogue.with_name(f".{self._catalogue.name}.part")
            part.write_bytes(b"".join(map(catalogue.encode, catalogue.merged(lines))))
            os.replace(part, self._catalogue)
