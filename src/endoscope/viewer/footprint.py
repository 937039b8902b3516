"""Footprint: what a run's folder holds by name, size and time. Nothing is opened: cheap enough for every second."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from endoscope.runs import layout

MOST_ENTRIES = 100_000
"""Files that are looked at."""
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
    """The files of a run as they are on the disk now.

    >>> footprint("runs/digits").files["epoch_4/validation_scores.json"].bytes
    10250
    """

    files: Mapping[str, File]
    """By name below the folder: those that docs/run-folder.md has, and no link."""
    folders: frozenset[str]
    complete: bool
    """False when there were more than `MOST_ENTRIES`."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def last_write(self) -> float | None:
        """In seconds since 1970; None without a file."""
        return max((file.mtime_ns for file in self.files.values()), default=0) / 1e9 or None

    @property
    def stamp(self) -> str:
        """Another text when a file has come, gone or changed."""
        files = (f"{name} {file.bytes} {file.mtime_ns} {file.inode}" for name, file in sorted(self.files.items()))
        text = "\n".join([*files, "", *sorted(self.folders)])
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def footprint(path: str | os.PathLike[str]) -> Footprint:
    """What is there; empty when the folder is not."""
    walk = _Walk(Path(path))
    walk.folder("", _FILES, _PAGES, epochs=True)
    return Footprint(walk.files, frozenset(walk.folders), walk.left > 0)


class _Walk:
    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self.files: dict[str, File] = {}
        self.folders: set[str] = set()
        self.left = MOST_ENTRIES

    def folder(self, within: str, files: Names | None, pages: Names, *, epochs: bool = False) -> None:
        """Look at one folder; ``files`` None takes all."""
        try:
            with os.scandir(f"{self._root}/{within}") as entries:
                for entry in entries:
                    self.left -= 1
                    if self.left <= 0:
                        return
                    self._entry(entry, within, files, pages, epochs=epochs)
        except OSError:
            return  # gone meanwhile, or not ours to read: `Run.problems` says so

    def _entry(
        self,
        entry: os.DirEntry[str],
        within: str,
        files: tuple[str, ...] | None,
        pages: tuple[str, ...],
        *,
        epochs: bool,
    ) -> None:
        name = within + entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name in pages:
                self.folders.add(name)
                self.folder(f"{name}/", None, ())
            elif epochs and layout.epoch_of(entry.name) is not None:
                self.folders.add(name)
                self.folder(f"{name}/", _EPOCH_FILES, _EPOCH_PAGES)
        elif (files is None or entry.name in files) and entry.is_file(follow_symlinks=False):
            about = entry.stat(follow_symlinks=False)
            self.files[name] = File(about.st_size, about.st_mtime_ns, about.st_ino)
