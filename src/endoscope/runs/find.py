"""Finding runs: which folders below a folder are those of runs. Bounded in depth, in number and in effort."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from endoscope.runs import layout
from endoscope.runs.run import Run, RunNotFoundError

MAX_ENTRIES = 200_000
"""Files and folders that are looked at."""
_INSIDE_A_RUN = (layout.DATAPOINTS, layout.OUTPUTS, layout.DEBUGGER)


@dataclass(frozen=True, slots=True)
class Found:
    """The runs below a folder, by path, and where was not looked."""

    runs: tuple[Run, ...]
    problems: tuple[str, ...]


def find_runs(folder: str | os.PathLike[str], *, depth: int = 4, most: int = 1000) -> Found:
    """The runs in ``folder`` and below it, ``depth`` levels deep and at most ``most``; links are not followed.

    >>> find_runs("runs").runs
    (<Run 'runs/digits': training, finished>, <Run 'runs/digits/eval': evaluation, finished>)

    A run is a folder with a run.json, with scores of an evaluation, or with folders of epochs. Hidden folders are
    passed over.
    """
    root = Path(folder)
    if not root.is_dir():
        raise RunNotFoundError(f"there is no folder {str(root)!r}")
    search = _Search(root, depth, most)
    search.look(root, 0)
    there = [path for path in sorted(search.found) if path.is_dir()]  # one may have been removed meanwhile
    return Found(tuple(map(Run, there)), tuple(search.problems()))


class _Search:
    def __init__(self, root: Path, depth: int, most: int) -> None:
        self._root = root
        self._depth = depth
        self._most = most
        self._left = MAX_ENTRIES
        self._too_deep = 0
        self._unread: list[str] = []
        self.found: list[Path] = []

    def look(self, folder: Path, level: int) -> None:
        try:
            with os.scandir(folder) as entries:
                names, folders = self._sorted(entries)
        except OSError as e:
            self._unread.append(f"{folder.relative_to(self._root)}: {e.strerror}")
            return
        is_run = bool(names & {layout.RUN, layout.scores_file("evaluation")}) or any(map(_is_epoch, folders))
        if is_run:
            self.found.append(folder)
        below = [name for name in folders if not _is_epoch(name) and not (is_run and name in _INSIDE_A_RUN)]
        if below and level == self._depth:
            self._too_deep += 1
            return
        for name in below:
            if self._left > 0 and len(self.found) < self._most:
                self.look(folder / name, level + 1)

    def _sorted(self, entries: Iterator[os.DirEntry[str]]) -> tuple[set[str], list[str]]:
        """The names of the files, and those of the folders in order."""
        names: set[str] = set()
        folders: list[str] = []
        for entry in entries:
            self._left -= 1
            if self._left <= 0:
                break
            if not entry.name.startswith("."):
                folders.append(entry.name) if entry.is_dir(follow_symlinks=False) else names.add(entry.name)
        return names, sorted(folders)

    def problems(self) -> list[str]:
        told = self._unread[:10]
        if len(self._unread) > len(told):
            told.append(f"{len(self._unread) - len(told)} more folders cannot be read")
        if self._too_deep:
            told.append(f"{self._too_deep} folders lie deeper than {self._depth} levels and were not looked into")
        if len(self.found) >= self._most:
            told.append(f"there may be more than {self._most} runs; only the first ones are listed")
        if self._left <= 0:
            told.append(f"there are more than {MAX_ENTRIES} files and folders; the rest was not looked at")
        return told


def _is_epoch(name: str) -> bool:
    return layout.epoch_of(name) is not None
