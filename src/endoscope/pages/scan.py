"""Scanning: the records of a page from its lines alone, for a page that is being written or whose writer was killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages import format
from endoscope.pages.catalogue import Index, PageInfo, PageLines
from endoscope.pages.files import FIRST_LINE, PageFiles

_CHUNK = 4 << 20
_IDX = re.compile(rb'\{"idx":(-?\d{1,20}|\[[-\d,]{1,60}\]?)')


@dataclass(frozen=True, slots=True)
class Damage:
    """Something on disk that could not be read: which file, which record (None: the file itself), and why."""

    file: str
    record: int | None
    cause: str
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = self.file if self.record is None else f"{self.file}, record {self.record}"
        which = f" (datapoint {', '.join(map(str, self.indices[:8]))})" if self.indices else ""
        return f"{where}{which}: {self.cause}"


def scan(files: PageFiles) -> tuple[Index, list[Damage]]:
    """Every complete record of a page, and what is damaged. A torn end is neither: it was never acknowledged."""
    page = _Scan(files.name)
    try:
        if not _barely_begun(files):
            for start, line, ended in read_lines(files.text):
                page.take(line, start, ended)
    except PageFormatError as e:
        page.damage.append(Damage(page.file, None, str(e)))
    return page.lines.index(PageInfo(files.name, page.dropped, page.closed)), page.damage


class _Scan:
    """The state of one scan."""

    def __init__(self, name: str) -> None:
        self.file = f"{name}.jsonl"
        self.lines = PageLines()
        self.damage: list[Damage] = []
        self.dropped = 0
        self.closed = False

    def take(self, line: bytes | None, start: int, ended: bool) -> None:
        """Take one line; None is a line that is too long, and ``ended`` whether a newline ends it."""
        try:
            if line is None:
                raise PageFormatError(f"line of more than {format.MAX_LINE} bytes, longer than any that is written")
            if ended:
                self._take_members(line, start)
            elif complete := next((part for part in (line, line[:-1]) if format.is_sealed(part)), None):
                self._take_members(complete, start)
                self._add_damage("the last line's newline is missing")
        except PageFormatError as e:
            self._add_damage(f"{e}{_claimed_index(line)}")
            if line is not None and not format.is_sealed(line):
                for at, inside in _lines_inside(line):
                    with contextlib.suppress(PageFormatError):
                        self._take_members(inside, start + at)

    def _take_members(self, line: bytes, start: int) -> None:
        members = format.unseal(line)
        if "idx" in members:
            self.lines.add(read_indices(members), start, start + len(line) + 1)
            self.dropped += _count(members.get("dropped"))
        elif isinstance(members.get("closed"), dict):
            self.closed = True
            self.dropped += _count(members["closed"].get("dropped"))

    def _add_damage(self, cause: str) -> None:
        self.damage.append(Damage(self.file, len(self.lines) + len(self.damage), cause))


def read_indices(members: dict[str, Any]) -> list[int]:
    """The datapoints of a record's line."""
    idx = members.get("idx")
    indices: list[Any] = idx if isinstance(idx, list) else [idx]
    if not indices or not all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in indices):
        raise PageFormatError("line without a usable idx")
    return indices


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _barely_begun(files: PageFiles) -> bool:
    """Whether a page's first line was never finished: its writer was killed right after it created the files."""
    lines, tensors = (Path(files.folder, f"{files.name}.{suffix}") for suffix in ("jsonl", "safetensors"))
    try:
        status = lines.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_size >= FIRST_LINE or b"\n" in lines.read_bytes():
            return False
        return not tensors.exists() or tensors.stat().st_size == 0
    except OSError:
        return False


def read_lines(fd: int) -> Iterator[tuple[int, bytes | None, bool]]:
    """(start, line, whether a newline ends it) of a file; None for a line that is longer than any may be.

    Only the last line can be without a newline: it is still being written, or its writer was killed.
    """
    size = os.fstat(fd).st_size
    start = at = length = 0
    pieces: list[bytes] = []
    while at < size and (chunk := os.pread(fd, min(_CHUNK, size - at), at)):
        at += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            length += len(piece)
            yield start, (b"".join((*pieces, piece)) if length <= format.MAX_LINE else None), True
            start += length + 1
            pieces, length = [], 0
        length += len(rest)
        pieces = [*pieces, rest] if length <= format.MAX_LINE else []
        if length > 4 * format.MAX_LINE:
            break  # several lines may have run together, but not so many: this is not a page
    if length:
        yield start, (b"".join(pieces) if length <= format.MAX_LINE else None), False


def _claimed_index(line: bytes | None) -> str:
    """The datapoint that a damaged line names: unverified, but an older record of it may pass for the latest."""
    idx = _IDX.match(line or b"")
    return f"; it seems to be of datapoint {idx[1].decode()}" if idx else ""


def _lines_inside(line: bytes) -> Iterator[tuple[int, bytes]]:
    """The complete lines inside a damaged one: their newlines were lost, or bytes were inserted before them."""
    starts = [m.start() for m in re.finditer(rb'\{"(?:idx|closed|endoscope_page)":', line)]
    for start, following in itertools.zip_longest(starts, starts[1:]):
        inside = line[start:following]
        for part in (inside, inside[:-1]) if following is not None else (inside,):
            if format.is_sealed(part):
                yield start, part
                break
