"""Sinks: where the writer thread puts records. Here: safetensors pages, with a new page at the page size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from endoscope.capturing.snapshot import Snapshot
from endoscope.pages import catalogue, header
from endoscope.pages.encoding import encode_record
from endoscope.pages.folders import sync_folder
from endoscope.pages.names import catalogue_name
from endoscope.pages.page import Lost, Page


@dataclass(slots=True)
class Captured:
    """A record as captured; a device may still be delivering its bytes. Nothing in it changes."""

    idx: int | list[int]
    outputs: Mapping[str, Snapshot]
    notes: Mapping[str, Any]
    nbytes: int
    dropped: int = 0
    """How many records were dropped before it, because the queue was full."""


class PageSink(Protocol):
    """Where records go on the writer thread: safetensors pages, or pickle pages."""

    unsaved: int
    """Records that stay in memory, also after `write`, until `flush` or a full page."""

    def append(self, record: Captured) -> Mapping[str, str]:
        """Take one record, which may wait for `write`. Returns why a debugger's value could not be stored, by name."""

    def write(self) -> list[Lost]:
        """Pass the records taken so far to the kernel; returns those that could not be written."""

    def flush(self) -> None: ...
    def close(self, *, dropped: int) -> None: ...


class SafetensorsSink:
    """Records into ``page_N.safetensors`` and ``page_N.jsonl``, a new pair before the page size would be passed."""

    unsaved = 0

    def __init__(self, folder: Path, *, page_size: int, rank: int | None, first_page: int = 0) -> None:
        self._folder = folder
        self._page_size = page_size
        self._rank = rank
        self._page: Page | None = None
        self._next = first_page
        self._room = 16 << 10
        self._catalogue = folder / catalogue_name(rank)
        self._lost: list[Lost] = []

    def append(self, captured: Captured) -> Mapping[str, str]:
        record = encode_record(captured.idx, captured.outputs, captured.notes)
        if captured.dropped:
            record.body += b',"dropped":%d' % captured.dropped
        entries = header.header_bytes(record)
        size = record.nbytes + len(record.body) + 128
        page = self._page
        if page is not None:
            no_room = page.header_size + entries > page.data_start
            if no_room or not page.usable or page.data_start + page.size + size > self._page_size:
                self._close_page(dropped=0)
                page = None
                self._room *= 4 if no_room else 1
        if page is None:
            # The header is written last and its room reserved first: enough for a page full of records like this one,
            # but for small records no more than is sure to be used. Room that was used up grows with the next page.
            expected = entries * self._page_size // (size + entries)
            room = 512 + max(entries, min(expected, max(self._room, record.nbytes)))
            page = self._page = self._new_page(data_start=-(-room // 64) * 64)
        page.append(record, captured.dropped)
        page.header_size += entries
        return record.failures

    def _new_page(self, data_start: int) -> Page:
        while True:
            number, self._next = self._next, self._next + 1
            with contextlib.suppress(FileExistsError):  # another debugger writes into this folder, too
                return Page(self._folder, number, self._rank, data_start=data_start)

    def write(self) -> list[Lost]:
        if self._page is not None:
            self._lost += self._page.write()
        lost, self._lost = self._lost, []
        return lost

    def flush(self) -> None:
        """Nothing to do: `write` leaves nothing in memory."""

    def _close_page(self, *, dropped: int) -> None:
        page, self._page = self._page, None
        if page is None:
            return
        self._lost += page.write()
        page.close(dropped=dropped)
        sync_folder(self._folder)
        if page.usable:  # else it has a torn end and no closing line, and readers scan its lines
            with open(self._catalogue, "ab") as f:
                f.write(catalogue.encode(page.index(dropped=dropped)))

    def close(self, *, dropped: int) -> None:
        """Close the page, and merge the catalogue's lines."""
        self._close_page(dropped=dropped)
        lines = catalogue.decode_all(self._catalogue.read_bytes().split(b"\n")) if self._catalogue.exists() else []
        if len(lines) > 1:
            part = self._catalogue.with_name(f".{self._catalogue.name}.part")
            part.write_bytes(b"".join(map(catalogue.encode, catalogue.merged(lines))))
            os.replace(part, self._catalogue)
