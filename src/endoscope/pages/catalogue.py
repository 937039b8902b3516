"""The catalogue: which datapoint stands in which line of which page, so that a reader need not open the other pages.

A writer appends one sealed line for each page it closes, and ends by putting a single line for all of them in their
place. It is a cache: what it does not cover is found by reading the pages' lines, and a damaged line of it is ignored.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from endoscope.errors import PageFormatError
from endoscope.pages import format

_ARRAYS = ("indices", "counts", "starts", "ends", "page")
Ints = np.ndarray[Any, np.dtype[np.int64]]


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PageInfo:
    """One page: its name, how many records were dropped while it was written, and whether it was closed."""

    name: str
    dropped: int = 0
    closed: bool = True


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
    i, c, s, e = (np.concatenate([_none(), *(getattr(p, k) for p in parts)]) for k in _ARRAYS[:-1])
    return Index(tuple(pages), i, c, s, e, np.concatenate([_none(), *numbers]))


def ordered(index: Index, key: Callable[[str], Any]) -> Index:
    """The same with the pages, and their records with them, in the order of ``key``."""
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
    arrays = {k: base64.b64encode(getattr(index, k).astype("<i8").tobytes()).decode() for k in _ARRAYS}
    pages = [[p.name, p.dropped] for p in index.pages]
    return format.sealed({"catalogue": format.VERSION, "pages": pages, **arrays})


def decode_all(lines: Iterable[bytes]) -> list[Index]:
    """Every whole line of a catalogue; damaged ones are left out."""
    found = []
    for line in filter(None, lines):
        with contextlib.suppress(PageFormatError):
            found.append(decode(line))
    return found


def decode(line: bytes) -> Index:
    """Raises `PageFormatError` for anything that `encode` would not have written."""
    members = format.unseal(line)
    if members.get("catalogue") != format.VERSION:
        raise PageFormatError("catalogue of another version")
    try:
        arrays = [np.frombuffer(base64.b64decode(members[k], validate=True), "<i8") for k in _ARRAYS]
        pages = tuple(PageInfo(name, dropped) for name, dropped in members["pages"])
    except (KeyError, TypeError, ValueError):
        raise PageFormatError("catalogue line without its arrays") from None
    index = Index(pages, *arrays)
    sized = len(index.counts) == len(index.starts) == len(index.ends) == len(index.page)
    named = all(type(p.name) is str and type(p.dropped) is int for p in pages)
    if not (sized and named and _counts_fit(index)):
        raise PageFormatError("catalogue line whose arrays do not fit together")
    return index


def _counts_fit(index: Index) -> bool:
    if not len(index):
        return not len(index.indices)
    return bool(
        index.counts.min() > 0
        and index.counts.max() <= len(index.indices) == index.counts.sum()
        and index.starts.min() >= 0
        and (index.starts < index.ends).all()
        and index.page.min() >= 0
        and index.page.max() < len(index.pages)
        and (np.diff(index.page) >= 0).all()
    )
