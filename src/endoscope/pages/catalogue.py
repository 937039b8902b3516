"""The catalogue: which datapoint is in which line of which page, so that a reader need not open every page.

A writer appends one sealed line for each page it closes, and merges them into as few lines as possible when it ends.
The catalogue is a cache: readers scan the lines of pages that it does not cover, and ignore its damaged lines.
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
_INT64 = np.dtype("<i8")


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PageInfo:
    """One page: its name, how many records were dropped while it was written, and whether it was closed."""

    name: str
    dropped: int = 0
    closed: bool = True
    data_start: int = 0
    """Where its tensors begin; 0 if that is still to be read from its first line."""


@dataclass(frozen=True, slots=True)
class Index:
    """Where records are. Arrays have one element per record, ``indices`` one per datapoint of each record."""

    pages: tuple[PageInfo, ...] = ()
    indices: Ints = field(default_factory=_none)
    counts: Ints = field(default_factory=_none)
    """How many datapoints the record holds."""
    starts: Ints = field(default_factory=_none)
    ends: Ints = field(default_factory=_none)
    """Where the record's line is in its page's lines."""
    page: Ints = field(default_factory=_none)
    """Position in ``pages``."""

    def __len__(self) -> int:
        return len(self.counts)

    def datapoints_of(self, page: int) -> list[int]:
        """The indices that a page holds."""
        return [int(i) for i in self.indices[np.repeat(self.page, self.counts) == page]]


class PageLines:
    """The record lines of one page, collected one by one."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self._counts: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, indices: Sequence[int], start: int, end: int) -> None:
        self.indices += indices
        self._counts.append(len(indices))
        self._starts.append(start)
        self._ends.append(end)

    def index(self, page: PageInfo) -> Index:
        lists = (self.indices, self._counts, self._starts, self._ends)
        indices, counts, starts, ends = (np.array(numbers, np.int64) for numbers in lists)
        return Index((page,), indices, counts, starts, ends, np.zeros(len(self), np.int64))


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
    """The same index with its pages, and their records, sorted by ``key`` of the page name."""
    if len(index.pages) < 2:
        return index
    order = sorted(range(len(index.pages)), key=lambda k: key(index.pages[k].name))
    if order == list(range(len(order))):
        return index
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    page = position[index.page]
    records = np.argsort(page, kind="stable")
    datapoints = np.argsort(np.repeat(page, index.counts), kind="stable")
    pages = tuple(index.pages[k] for k in order)
    counts, starts, ends = (a[records] for a in (index.counts, index.starts, index.ends))
    return Index(pages, index.indices[datapoints], counts, starts, ends, page[records])


_LINE_DATAPOINTS = 400_000  # per line: with one record each they take a third of the longest line


def merged(parts: Sequence[Index]) -> list[Index]:
    """The same records in as few parts as fit into lines."""
    groups: list[list[Index]] = [[]]
    for part in parts:
        if groups[-1] and sum(len(p.indices) for p in groups[-1]) + len(part.indices) > _LINE_DATAPOINTS:
            groups.append([])
        groups[-1].append(part)
    return [merge(group) for group in groups]


def encode(index: Index) -> bytes:
    """One line. In each page every line must begin where the one before it ends, as a writer leaves them."""
    pages, first = [], 0
    records = np.bincount(index.page, minlength=len(index.pages)).tolist()
    for info, count in zip(index.pages, records, strict=True):
        pages.append([info.name, info.dropped, info.data_start, int(index.starts[first]) if count else 0, count])
        first += count
    members = {"catalogue": format.VERSION, "pages": pages, "indices": _text(index.indices), "ends": _text(index.ends)}
    if len(index.indices) != len(index):
        members["counts"] = _text(index.counts)
    return format.sealed(members)


def _text(array: Ints) -> str:
    return binascii.b2a_base64(array.astype("<i8").tobytes(), newline=False).decode()


def _array(text: str) -> Ints:
    return np.frombuffer(binascii.a2b_base64(text, strict_mode=True), _INT64)


def decode_all(lines: Iterable[bytes]) -> list[Index]:
    """Every valid line of a catalogue; damaged ones are left out."""
    parts = []
    for line in filter(None, lines):
        try:
            parts.append(decode(line))
        except PageFormatError:
            continue
    return parts


def decode(line: bytes) -> Index:
    """Raises `PageFormatError` for anything that `encode` would not have written.

    Offsets are not checked here, but when a line is read.
    """
    members = format.unseal(line)
    if members.get("catalogue") != format.VERSION:
        raise PageFormatError("catalogue of another version")
    try:
        indices, ends = _array(members["indices"]), _array(members["ends"])
        counts = _array(members["counts"]) if "counts" in members else np.ones(len(ends), np.int64)
        pages = [_decode_page(*page) for page in members["pages"]]
    except (KeyError, TypeError, ValueError):
        raise PageFormatError("catalogue line without its arrays") from None
    records = [count for _, _, count in pages]
    if sum(records) != len(ends) or not _fit(counts, len(ends), len(indices)):
        raise PageFormatError("catalogue line whose arrays do not fit together")
    starts = np.empty(len(ends), _INT64)
    starts[1:] = ends[:-1]
    first = 0
    for _, start, count in pages:
        starts[first : first + 1] = start
        first += count
    page = np.repeat(np.arange(len(pages)), records)
    return Index(tuple(info for info, _, _ in pages), indices, counts, starts, ends, page)


def _decode_page(*page: Any) -> tuple[PageInfo, int, int]:
    """A page, where its first record's line begins, and how many records it has."""
    name, *numbers = page
    if type(name) is not str or len(numbers) != 4 or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise PageFormatError("catalogue line whose pages are malformed")
    dropped, data_start, start, records = numbers
    return PageInfo(name, dropped, data_start=data_start), start, records


def _fit(counts: Ints, records: int, datapoints: int) -> bool:
    """Whether every record has a datapoint, and together they have all of them. The sum alone may overflow."""
    if not len(counts):
        return records == datapoints == 0
    return bool(len(counts) == records and counts.min() > 0 and counts.max() <= datapoints == counts.sum())
