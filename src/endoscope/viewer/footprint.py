"""Footprint: the files of a run's folder with their sizes and times. Opens nothing, so it is cheap once a second."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from endoscope.runs import layout
from endoscope.runs.files import identity

MAX_ENTRIES = 100_000
"""Files and folders that are examined."""
_FILES = (layout.RUN, layout.CONFIG, layout.PROGRESS, layout.scores_file("evaluation"))
_EPOCH_FILES = (layout.scores_file("validation"), layout.TRAINING_LOSSES, layout.CHECKPOINT)
_PAGES = (layout.DATAPOINTS, layout.OUTPUTS, layout.DEBUGGER)
_EPOCH_PAGES = (layout.OUTPUTS, layout.DEBUGGER)

Names = tuple[str, ...]


class File(NamedTuple):
    bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """The files of a run as they are on disk now.

    >>> footprint("runs/digits").files["epoch_4/validation_scores.json"].bytes
    10250
    """

    files: Mapping[str, File]
    """By name below the folder: the files that docs/run-folder.md names, without links."""
    folders: frozenset[str]
    complete: bool
    """False when there were more than `MAX_ENTRIES`."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def last_write(self) -> float | None:
        """In seconds since 1970; None without a file."""
        return max((file.mtime_ns for file in self.files.values()), default=0) / 1e9 or None

    @property
    def stamp(self) -> str:
        """A text that changes when a file appears, disappears or changes."""
        files = (f"{name} {file.bytes} {file.mtime_ns} {file.inode}" for name, file in sorted(self.files.items()))
        text = "\n".join([*files, "", *sorted(self.folders)])
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def footprint(path: str | os.PathLike[str]) -> Footprint:
    """The footprint of a folder; empty when the folder does not exist."""
    files: dict[str, File] = {}
    folders: set[str] = set()
    examined = 0
    for name, entry in _walk(f"{os.fspath(path)}/", "", _FILES, _PAGES, epochs=True):
        examined += 1
        if examined == MAX_ENTRIES:
            break
        if entry == "folder":
            folders.add(name)
        elif isinstance(entry, File):
            files[name] = entry
    return Footprint(files, frozenset(folders), examined < MAX_ENTRIES)


def file_state(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Changes when the file changes; None without one."""
    try:
        return identity(os.lstat(path))
    except OSError:
        return None


def _walk(
    root: str, within: str, files: Names | None, pages: Names, *, epochs: bool = False
) -> Iterator[tuple[str, File | Literal["folder", "other"]]]:
    """Every entry of one folder, and those of the folders of epochs and pages in it; ``files`` None takes all files."""
    with suppress(OSError), os.scandir(root + within) as entries:  # what cannot be read, `Run.problems` reports
        for entry in entries:
            name = within + entry.name
            is_epoch = epochs and layout.epoch_of(entry.name) is not None
            if entry.is_dir(follow_symlinks=False) and (is_epoch or entry.name in pages):
                yield name, "folder"
                inside = (_EPOCH_FILES, _EPOCH_PAGES) if is_epoch else (None, ())
                yield from _walk(root, f"{name}/", *inside)
            elif (files is None or entry.name in files) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield name, File(status.st_size, status.st_mtime_ns, status.st_ino)
            else:
                yield name, "other"
