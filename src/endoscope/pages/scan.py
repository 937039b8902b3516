"""Finding the records of a page from its lines alone: for one that is being written, or whose writer was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages import catalogue, format
from endoscope.pages.files import PageFiles


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


def read_indices(members: dict[str, Any]) -> list[int]:
    idx = members.get("idx")
    found: list[Any] = idx if isinstance(idx, list) else [idx]
    if not found or not all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in found):
        raise PageFormatError("line without a usable idx")
    return found


def scan(files: PageFiles) -> tuple[catalogue.Index, list[Damage]]:
    """Every whole record of a page, and what of it is damaged. A torn end is neither: it was never acknowledged."""
    name = f"{files.name}.jsonl"
    indices: list[int] = []
    counts: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    damage: list[Damage] = []
    dropped = 0
    closed = False

    def take(members: dict[str, Any], start: int, end: int) -> None:
        nonlocal dropped
        found = read_indices(members)
        indices.extend(found)
        counts.append(len(found))
        starts.append(start)
        ends.append(end)
        dropped += _count(members.get("dropped"))

    try:
        size = os.fstat(files.text).st_size
    except PageFormatError as e:
        # A kill right after the files were made leaves an empty one: that is an unfinished page, not a damaged one.
        if not _is_empty(files.folder / name):
            damage.append(Damage(name, None, str(e)))
        return catalogue.of_page(catalogue.PageInfo(files.name, closed=False)), damage
    for start, line in _lines(files.text, size):
        end = start + len(line) + 1
        try:
            members = format.unseal(line)
            if "idx" in members:
                take(members, start, end)
            elif isinstance(members.get("closed"), dict):
                closed = True
                dropped += _count(members["closed"].get("dropped"))
        except PageFormatError as e:
            damage.append(Damage(name, len(counts) + len(damage), str(e)))
            if (inside := _rescue(line)) is not None:
                take(format.unseal(line[inside:]), start + inside, end)
    return catalogue.of_page(catalogue.PageInfo(files.name, dropped, closed), indices, counts, starts, ends), damage


def _is_empty(path: Path) -> bool:
    try:
        return path.stat(follow_symlinks=False).st_size == 0
    except OSError:
        return False


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _lines(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(start, line) of every line that is ended; what follows the last newline is still being written, or was torn."""
    rest, at, start = b"", 0, 0
    while at < size:
        chunk = os.pread(fd, min(4 << 20, size - at), at)
        if not chunk:
            return
        at += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield start, line
            start += len(line) + 1
        if len(rest) > format.MAX_LINE:  # no line is so long: look for the next one without keeping this
            raise PageFormatError(f"line of more than {format.MAX_LINE} bytes")


def _rescue(line: bytes) -> int | None:
    """Where a whole record begins inside a bad line, whose newline to the one before was lost."""
    at = line.find(b'{"idx":', 1)
    while at > 0:
        if format.is_sealed(line[at:]):
            return at
        at = line.find(b'{"idx":', at + 1)
    return None
