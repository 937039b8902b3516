"""The catalogue: which datapoint stands in which line of which page, so that a reader need not open the other pages.

One sealed line for each closed page, appended by its writer. It is a cache: whatever it does not cover is found by
reading the pages' lines, and a damaged line of it is ignored.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.errors import PageFormatError
from endoscope.pages import format

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Where the records of one page are: how many datapoints each holds, and where its line starts and ends."""

    page: str
    indices: Ints
    counts: Ints
    starts: Ints
    ends: Ints
    dropped: int = 0
    closed: bool = True

    @property
    def records(self) -> int:
        return len(self.counts)


_ARRAYS = ("indices", "counts", "starts", "ends")


def make(page: str, indices: list[int], counts: list[int], starts: list[int], ends: list[int], **about: Any) -> PageIndex:
    return PageIndex(page, *(np.array(a, np.int64) for a in (indices, counts, starts, ends)), **about)


def empty(page: str) -> PageIndex:
    """A page without a readable record."""
    return make(page, [], [], [], [], closed=False)


def encode(index: PageIndex) -> bytes:
    arrays = {k: base64.b64encode(getattr(index, k).astype("<i8").tobytes()).decode() for k in _ARRAYS}
    return format.sealed({"catalogue": format.VERSION, "page": index.page, "dropped": index.dropped, **arrays})


def decode(line: bytes) -> PageIndex:
    """Raises `PageFormatError` for anything that `encode` would not have written."""
    members = format.unseal(line)
    if members.get("catalogue") != format.VERSION:
        raise PageFormatError("catalogue of another version")
    try:
        indices, counts, starts, ends = (np.frombuffer(base64.b64decode(members[k], validate=True), "<i8") for k in _ARRAYS)
        page, dropped = members["page"], members["dropped"]
    except (KeyError, TypeError, ValueError):
        raise PageFormatError("catalogue line without its arrays") from None
    whole = len(starts) == len(ends) == len(counts) and (counts > 0).all() and counts.sum() == len(indices)
    if not (whole and (starts >= 0).all() and (starts < ends).all() and isinstance(page, str) and isinstance(dropped, int)):
        raise PageFormatError("catalogue line whose arrays do not fit together")
    return PageIndex(page, indices, counts, starts, ends, dropped)
