"""Names of page files: ``page_3.jsonl``, ``page_3_rank_1.safetensors``, ``catalogue.jsonl``."""

from __future__ import annotations

import re
from typing import NamedTuple

_PAGE = re.compile(r"page_(\d{1,9})(?:_rank_(\d{1,9}))?\.(jsonl|safetensors|pkl)", re.ASCII)
_CATALOGUE = re.compile(r"catalogue(?:_rank_(\d{1,9}))?\.jsonl", re.ASCII)


class FileName(NamedTuple):
    """A page file's name, taken apart."""

    page: int
    """-1 for a catalogue."""
    rank: int | None
    kind: str
    """The suffix, or ``catalogue``."""

    @property
    def order(self) -> tuple[int, int]:
        """Pages are read by rank, then by number."""
        return (-1 if self.rank is None else self.rank, self.page)


def page_name(number: int, rank: int | None) -> str:
    """``page_3``, or ``page_3_rank_1`` when several processes write."""
    return f"page_{number}" if rank is None else f"page_{number}_rank_{rank}"


def catalogue_name(rank: int | None) -> str:
    return "catalogue.jsonl" if rank is None else f"catalogue_rank_{rank}.jsonl"


def parse_name(name: str) -> FileName | None:
    """The parts of a page file's name; None for any other file."""
    if m := _PAGE.fullmatch(name):
        return FileName(int(m[1]), int(m[2]) if m[2] else None, m[3])
    if m := _CATALOGUE.fullmatch(name):
        return FileName(-1, int(m[1]) if m[1] else None, "catalogue")
    return None


def page_order(page: str) -> tuple[int, int]:
    """The reading order of a page, by its name without a suffix."""
    parsed = parse_name(f"{page}.jsonl")
    return parsed.order if parsed else (0, 0)
