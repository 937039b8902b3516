"""Lookup: which record of a folder holds a datapoint, from its catalogues and the lines of the pages beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from endoscope.errors import DatapointNotFoundError, PageFormatError
from endoscope.pages import catalogue
from endoscope.pages.catalogue import Index, Ints
from endoscope.pages.files import Listing, PageFiles, list_folder, open_file
from endoscope.pages.names import page_order, parse_name
from endoscope.pages.scan import Damage, read_lines, scan


@dataclass(frozen=True, slots=True)
class Lookup:
    """Datapoints in ascending order, each with its record and its row in the record's batch."""

    index: Index
    damage: list[Damage]
    """What finding the records showed."""
    closed_pages: list[str]
    """Pages that exist and were closed."""
    datapoints: Ints
    record: Ints = field(repr=False)
    row: Ints | None = field(repr=False)
    """None if every record holds one datapoint."""

    def find(self, idx: Any) -> tuple[int, int] | None:
        """The record of a datapoint and its row there; None if there is none. Raises for anything but an integer."""
        if isinstance(idx, bool) or not isinstance(idx, (int, np.integer)):
            raise DatapointNotFoundError(f"a datapoint is found by its integer index, not by {type(idx).__name__}")
        count = len(self.datapoints)
        at = int(self.datapoints.searchsorted(idx)) if -(1 << 63) <= idx < 1 << 63 else count
        if at == count or self.datapoints[at] != idx:
            return None
        return int(self.record[at]), int(self.row[at]) if self.row is not None else 0


def look_up(folder: str, listing: Listing, open_page: Callable[[str], PageFiles]) -> Lookup:
    """Find every record of a folder."""
    parts: list[Index] = []
    for name in listing.catalogues:
        parts += _read_catalogue(folder, name, listing)
    covered = {info.name for part in parts for info in part.pages}
    if not covered <= listing.pages.keys():  # a live run has closed pages since the folder was listed
        listing = list_folder(folder)
    damage: list[Damage] = []
    for name in listing.pages:
        if name not in covered:
            part, found = scan(open_page(name))
            parts.append(part)
            damage += found
    # The latest record of an index counts, so the pages come in the order in which they were written.
    index = catalogue.ordered(catalogue.merge(parts), page_order)
    closed = []
    for k, info in enumerate(index.pages):
        if info.name not in listing.pages:
            damage.append(Damage(f"{info.name}.jsonl", None, "the page is missing", tuple(index.datapoints_of(k))))
        elif info.closed:
            closed.append(info.name)
    return Lookup(index, damage, closed, *_sort(index))


def _sort(index: Index) -> tuple[Ints, Ints, Ints | None]:
    """Datapoints in ascending order, each with its latest record and its row there."""
    indices, counts = index.indices, index.counts
    record, row = np.arange(len(counts)), None
    if len(indices) != len(counts):
        row = np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)
        record = np.repeat(record, counts)
    if (indices[1:] > indices[:-1]).all():
        return indices, record, row
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    order = order[np.append(ordered[1:] > ordered[:-1], True)]  # the last of equal ones is the latest
    return indices[order], record[order], row[order] if row is not None else None


def _read_catalogue(folder: str, name: str, listing: Listing) -> list[Index]:
    try:
        fd = open_file(folder, name)
    except PageFormatError:
        return []
    try:
        lines = (line for _, line, _ in read_lines(fd) if line is not None)
        return [part for part in catalogue.decode_all(lines) if _names_pages(part, listing)]
    finally:
        os.close(fd)


def _names_pages(index: Index, listing: Listing) -> bool:
    """A catalogue may name only pages of its own folder: existing ones, and ones that may have existed."""
    return bool(index.pages) and all(p.name in listing.pages or parse_name(f"{p.name}.jsonl") for p in index.pages)
