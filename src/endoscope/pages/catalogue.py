"""The catalogue: which datapoint stands in which line of which page, so that a reader need not open the other pages.

A writer appends one sealed line for each page it closes, and ends by putting a single line for all of them in their
place. It is a cache: what it does not cover is found by reading the pages' lines, and a damaged line of it is ignored.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from endoscope.errors import PageFormatError
from endoscope.pages import format

Ints = np.ndarray[Any, np.dtype[np.int64]]


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PageInfo:
    """One page: its name, how many records were dropped while it was written, and whether it was closed."""

    name: str
    dropped: int = 0
    closed: bool = True
    data_start: int = 0
    """Where its tensors begin; 0 when that is still to be read from its first line."""


@dataclass(frozen=True, slots=True)
class Index:
    """Where records are. Arrays have one element for each record, ``indices`` one for each datapoint of each record."""

    pages: tuple[PageInfo, ...] = ()
    indices: Ints = field(default_factory=_none)
    counts: Ints = field(default_factory=_none)
    """How many datapoints the record holds."""
    starts: Ints = field(default_factory=_none)
    ends: Ints = field(default_factory=_none)
    """Where the record's line lies in its page's lines."""
    page: Ints = field(default_factory=_none)
    """Which of ``pages``."""

    def __len__(self) -> int:
        return len(self.counts)

    def datapoints_of(self, page: int) -> list[int]:
        """The indices that a page holds."""
        return [int(i) for i in self.indices[np.repeat(self.page, self.counts) == page]]


def of_page(
    page: PageInfo,
    indices: Sequence[int] = (),
    counts: Sequence[int] = (),
    starts: Sequence[int] = (),
    ends: Sequence[int] = (),
) -> Index:
    """The index of one page, from plain lists."""
    i, c, s, e = (np.array(a, np.int64) for a in (indices, counts, starts, ends))
    return Index((page,), i, c, s, e, np.zeros(len(c), np.int64))


def merge(parts: Sequence[Index]) -> Index:
    """Several indices as one, in their order."""
    if len(parts) == 1:
        return parts[0]
    pages: list[PageInfo] = []
    numbers = []
    for part in parts:
        numbers.append(part.page + len(pages))
        pages += part.pages
    arrays = ("indices", "counts", "starts", "ends")
    i, c, s, e = (np.concatenate([_none(), *(getattr(p, k) for p in parts)]) for k in arrays)
    return Index(tuple(pages), i, c, s, e, np.concatenate([_none(), *numbers]))


def ordered(index: Index, key: Callable[[str], Any]) -> Index:
    """The same with the pages, and their records with them, in the order of ``key``."""
    if len(index.pages) < 2:
        return index
    order = sorted(range(len(index.pages)), key=lambda k: key(index.pages[k].name))
    if order == list(range(len(order))):
        return index
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    page = rank[index.page]
    records = np.argsort(page, kind="stable")
    datapoints = np.argsort(np.repeat(page, index.counts), kind="stable")
    pages = tuple(index.pages[k] for k in order)
    counts, starts, ends = (a[records] for a in (index.counts, index.starts, index.ends))
    return Index(pages, index.indices[datapoints], counts, starts, ends, page[records])


_LINE_RECORDS = 400_000  # in one line: with a datapoint each they take a third of the longest line that is read


def merged(parts: Sequence[Index]) -> list[Index]:
    """The same in as few parts as fit into lines."""
    groups: list[list[Index]] = [[]]
    for part in parts:
        if groups[-1] and sum(len(p.indices) for p in groups[-1]) + len(part.indices) > _LINE_RECORDS:
            groups.append([])
        groups[-1].append(part)
    return [merge(group) for group in groups]


def encode(index: Index) -> bytes:
    """One line. In each page a record's line must begin where the one before it ends, as a writer leaves them."""
    pages, first = [], 0
    records = np.bincount(index.page, minlength=len(index.pages)).tolist()
    for info, count in zip(index.pages, records, strict=True):
        pages.append([info.name, info.dropped, info.data_start, int(index.starts[first]) if count else 0, count])
        first += count
    members = {"catalogue": format.VERSION, "pages": pages, "indices": _text(index.indices), "ends": _text(index.ends)}
    if len(index.indices) != len(index):
        members["counts"] = _text(index.counts)
    return format.sealed(members)


_INT64 = np.dtype("<i8")


def _text(array: Ints) -> str:
    return binascii.b2a_base64(array.astype("<i8").tobytes(), newline=False).decode()


def _array(text: str) -> Ints:
    return np.frombuffer(binascii.a2b_base64(text, strict_mode=True), _INT64)


def decode_all(lines: Iterable[bytes]) -> list[Index]:
    """Every whole line of a catalogue; damaged ones are left out."""
    found = []
    for line in filter(None, lines):
        try:
            found.append(decode(line))
        except PageFormatError:
            continue
    return found


def decode(line: bytes) -> Index:
    """Raises `PageFormatError` for anything that `encode` would not have written.

    Offsets are the exception: each is checked when its line is read.
    """
    members = format.unseal(line)
    if members.get("catalogue") != format.VERSION:
        raise PageFormatError("catalogue of another version")
    try:
        indices, ends = _array(members["indices"]), _array(members["ends"])
        counts = _array(members["counts"]) if "counts" in members else None
        listed = [(name, numbers) for name, *numbers in members["pages"]]
    except (KeyError, TypeError, ValueError):
        raise PageFormatError("catalogue line without its arrays") from None
    pages: list[PageInfo] = []
    starts = np.empty(len(ends), _INT64)
    starts[1:] = ends[:-1]
    page = np.zeros(len(ends), _INT64)
    at = 0
    for name, numbers in listed:
        if type(name) is not str or len(numbers) != 4 or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            raise PageFormatError("catalogue line whose pages are malformed")
        dropped, data_start, start, records = numbers
        starts[at : at + 1] = start
        if pages:
            page[at : at + records] = len(pages)
        pages.append(PageInfo(name, dropped, data_start=data_start))
        at += records
    if at != len(ends) or not _counts_fit(counts, at, len(indices)):
        raise PageFormatError("catalogue line whose arrays do not fit together")
    return Index(tuple(pages), indices, np.ones(at, np.int64) if counts is None else counts, starts, ends, page)


def _counts_fit(counts: Ints | None, records: int, datapoints: int) -> bool:
    if counts is None or not records:
        return records == datapoints
    return bool(len(counts) == records and counts.min() > 0 and counts.max() <= datapoints == counts.sum())
