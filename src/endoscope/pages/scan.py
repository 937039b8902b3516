"""Finding the records of a page from its lines alone: for one that is being written, or whose writer was killed."""

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
from endoscope.pages import catalogue, format
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


def read_indices(members: dict[str, Any]) -> list[int]:
    idx = members.get("idx")
    found: list[Any] = idx if isinstance(idx, list) else [idx]
    if not found or not all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in found):
        raise PageFormatError("line without a usable idx")
    return found


class _Found:
    """What a scan has found so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.indices: list[int] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.damage: list[Damage] = []
        self.dropped = 0
        self.closed = False

    def take(self, line: bytes, start: int) -> None:
        members = format.unseal(line)
        if "idx" in members:
            found = read_indices(members)
            self.indices += found
            self.counts.append(len(found))
            self.starts.append(start)
            self.ends.append(start + len(line) + 1)
            self.dropped += _count(members.get("dropped"))
        elif isinstance(members.get("closed"), dict):
            self.closed = True
            self.dropped += _count(members["closed"].get("dropped"))

    def damaged(self, cause: str) -> None:
        self.damage.append(Damage(self.name, len(self.counts) + len(self.damage), cause))


def scan(files: PageFiles) -> tuple[catalogue.Index, list[Damage]]:
    """Every whole record of a page, and what of it is damaged. A torn end is neither: it was never acknowledged."""
    found = _Found(f"{files.name}.jsonl")
    try:
        lines = read_lines(files.text) if _has_begun(files) else iter(())
    except PageFormatError as e:
        found.damage.append(Damage(found.name, None, str(e)))
        return catalogue.of_page(catalogue.PageInfo(files.name, closed=False)), found.damage
    for start, line, ended in lines:
        try:
            if line is None:
                raise PageFormatError(f"line of more than {format.MAX_LINE} bytes, longer than any that is written")
            if ended:
                found.take(line, start)
            elif whole := next((part for part in (line, line[:-1]) if format.is_sealed(part)), None):
                found.take(whole, start)
                found.damaged("the last line's newline is missing")
        except PageFormatError as e:
            found.damaged(f"{e}{_claimed(line)}")
            if line is not None and not format.is_sealed(line):
                for at, inside in _rescue(line):
                    with contextlib.suppress(PageFormatError):
                        found.take(inside, start + at)
    info = catalogue.PageInfo(files.name, found.dropped, found.closed)
    return catalogue.of_page(info, found.indices, found.counts, found.starts, found.ends), found.damage


def _has_begun(files: PageFiles) -> bool:
    """False when the first line is not finished; True when it is, or is damaged: reading it once more will tell."""
    try:
        return files.text >= 0
    except PageFormatError:
        return not _barely_begun(files.folder, files.name)


def _barely_begun(folder: str, name: str) -> bool:
    """Whether a page's first line was never finished: its writer was killed right after it made the files."""
    lines, tensors = Path(folder, f"{name}.jsonl"), Path(folder, f"{name}.safetensors")
    try:
        about = lines.stat(follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode) or about.st_size >= FIRST_LINE or b"\n" in lines.read_bytes():
            return False
        return not tensors.exists() or tensors.stat().st_size == 0
    except OSError:
        return False


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def read_lines(fd: int) -> Iterator[tuple[int, bytes | None, bool]]:
    """(start, line, whether a newline ends it) of a file; None for a line that is longer than any may be.

    Only the last line can be without a newline: it is still being written, or its writer was killed.
    """
    size = os.fstat(fd).st_size
    start = at = 0
    held: list[bytes] = []
    length = 0
    while at < size:
        chunk = os.pread(fd, min(_CHUNK, size - at), at)
        if not chunk:
            break
        at += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            length += len(piece)
            yield start, (b"".join((*held, piece)) if length <= format.MAX_LINE else None), True
            start += length + 1
            held, length = [], 0
        length += len(rest)
        held = [*held, rest] if length <= format.MAX_LINE else []
        if length > 4 * format.MAX_LINE:
            break  # several lines may have run together, but not so many: this is something else
    if length:
        yield start, (b"".join(held) if length <= format.MAX_LINE else None), False


def _claimed(line: bytes | None) -> str:
    """What a damaged line says of its datapoint: unverified, but else an older record of it may pass for the latest."""
    idx = _IDX.match(line or b"")
    return f"; it seems to be of datapoint {idx[1].decode()}" if idx else ""


def _rescue(line: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole lines inside a bad one: the newlines between them were lost, or bytes have come before them."""
    starts = [m.start() for m in re.finditer(rb'\{"(?:idx|closed|endoscope_page)":', line)]
    for start, following in itertools.zip_longest(starts, starts[1:]):
        inside = line[start:following]
        for part in (inside, inside[:-1]) if following is not None else (inside,):
            if format.is_sealed(part):
                yield start, part
                break
