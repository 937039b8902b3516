"""Finding runs below a folder, limited in depth, in number of runs and in number of files visited."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from endoscope.runs import layout
from endoscope.runs.run import Run, RunNotFoundError

MAX_ENTRIES = 200_000
"""Files and folders that are visited."""
_INSIDE_A_RUN = {layout.DATAPOINTS, layout.OUTPUTS, layout.DEBUGGER}


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The runs below a folder, by path; ``problems`` says where the search did not look."""

    runs: tuple[Run, ...]
    problems: tuple[str, ...]


def find_runs(folder: str | os.PathLike[str], *, depth: int = 4, most: int = 1000) -> FoundRuns:
    """The runs in ``folder`` and below it, ``depth`` levels deep and at most ``most``; links are not followed.

    >>> find_runs("runs").runs
    (<Run 'runs/digits': training, finished>, <Run 'runs/digits/eval': evaluation, finished>)

    A run is a folder with a run.json, with evaluation scores, or with epoch folders. Hidden folders are skipped.
    """
    root = Path(folder)
    if not root.is_dir():
        raise RunNotFoundError(f"there is no folder {str(root)!r}")
    search = _Search(root, depth, most)
    search.visit(root, 0)
    existing = [path for path in sorted(search.runs) if path.is_dir()]  # one may have been removed meanwhile
    return FoundRuns(tuple(map(Run, existing)), tuple(search.problems()))


class _Search:
    def __init__(self, root: Path, depth: int, most: int) -> None:
        self._root = root
        self._depth = depth
        self._most = most
        self._remaining = MAX_ENTRIES
        self._too_deep = 0
        self._unread: list[str] = []
        self.runs: list[Path] = []

    def visit(self, folder: Path, level: int) -> None:
        files, folders = self._list(folder)
        epochs = {name for name in folders if layout.epoch_of(name) is not None}
        if epochs or files & {layout.RUN, layout.scores_file("evaluation")}:
            self.runs.append(folder)
            folders -= _INSIDE_A_RUN
        below = sorted(folders - epochs)
        if below and level == self._depth:
            self._too_deep += 1
            return
        for name in below:
            if self._remaining > 0 and len(self.runs) < self._most:
                self.visit(folder / name, level + 1)

    def _list(self, folder: Path) -> tuple[set[str], set[str]]:
        """The names of the files and of the folders."""
        try:
            with os.scandir(folder) as scan:
                entries = list(itertools.islice(scan, self._remaining))
        except OSError as e:
            self._unread.append(f"{folder.relative_to(self._root)}: {e.strerror}")
            return set(), set()
        self._remaining -= len(entries)
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        return {entry.name for entry in entries} - folders, folders

    def problems(self) -> list[str]:
        problems = self._unread[:10]
        if len(self._unread) > len(problems):
            problems.append(f"{len(self._unread) - len(problems)} more folders cannot be read")
        if self._too_deep:
            problems.append(f"folders deeper than {self._depth} levels that were not searched: {self._too_deep}")
        if len(self.runs) >= self._most:
            problems.append(f"there may be more than {self._most} runs; only the first ones are listed")
        if self._remaining <= 0:
            problems.append(f"there are more than {MAX_ENTRIES} files and folders; the rest was not searched")
        return problems
