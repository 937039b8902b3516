"""Library: the runs of this server by their ids.

A request names a run by an id. No path is ever built from a request.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from endoscope.errors import EndoscopeError
from endoscope.pages.files import list_folder
from endoscope.runs import Run, RunNotFoundError, find_runs, layout
from endoscope.runs.files import clean
from endoscope.viewer.datapoints import Datapoints

_OPEN_RUNS = 32  # whose files may stay in memory
_SEARCH_INTERVAL_S = 1.0
_SEARCH_SHARE = 20  # searching for runs takes at most 1/20 of the time


class Refusal(EndoscopeError):
    """A request that cannot be answered: the text goes to the page, with its HTTP status."""

    def __init__(self, message: str, *, hint: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of this server."""

    id: str
    name: str
    path: Path


class Library:
    """The runs in and below the folders that the server was started with.

    >>> library = Library(["runs"])
    >>> [entry.id for entry in library.entries()]
    ['digits-3f1c09a2', 'digits-eval-90b1d2c4']
    >>> library.run("digits-3f1c09a2")
    <Run '/home/me/runs/digits': training, finished>

    Finds runs that appear later. An id stays the same when the server is restarted. Safe to use from several threads.
    """

    def __init__(
        self, folders: Sequence[str | os.PathLike[str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.datapoints = Datapoints()
        self._roots = [*dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders)]
        self._clock = clock
        self._lock = threading.RLock()
        self._open: dict[str, Run] = {}
        self._entries: dict[str, Entry] = {}
        self._problems: list[str] = []
        self._next_search = 0.0
        for root in self._roots:
            if not root.is_dir():
                raise RunNotFoundError(f"there is no folder {str(root)!r}; give a run's work_dir, or a folder of runs")
        self._search()

    # ---- finding runs
    def entries(self) -> list[Entry]:
        """Every run, in the order of the folders and then by path."""
        with self._lock:
            if self._clock() >= self._next_search:
                self._search()
            return [*self._entries.values()]

    @property
    def problems(self) -> list[str]:
        """Folders without a run, and folders that were not searched."""
        return [self.shown(problem) for problem in self._problems]

    def _search(self) -> None:
        began = self._clock()
        names: dict[Path, str] = {}
        problems = []
        for root in self._roots:
            try:
                result = find_runs(root)
            except RunNotFoundError:
                problems.append(f"the folder {_name(root)!r} no longer exists")
                continue
            problems += [f"{_name(root)}: {problem}" for problem in result.problems]
            if not result.runs:
                problems.append(_why_no_run(root))
            for run in result.runs:
                inside = "" if run.path == root else run.path.relative_to(root).as_posix()
                names.setdefault(run.path, clean(inside) or _name(root))
        self._entries = {entry.id: entry for entry in _named(names)}
        self._problems = problems
        now = self._clock()
        self._next_search = now + max(_SEARCH_INTERVAL_S, _SEARCH_SHARE * (now - began))

    # ---- one run
    def entry(self, id: str) -> Entry:
        """The run with that id; `Refusal` when there is none."""
        with self._lock:
            entry = self._entries.get(id) or next((entry for entry in self.entries() if entry.id == id), None)
        if entry is None:
            raise Refusal("there is no such run", hint="Choose one on the page of runs.", status=404)
        return entry

    def run(self, id: str) -> Run:
        """The contents of the run with that id; `Refusal` when there is none, or its folder was removed."""
        entry = self.entry(id)
        with self._lock:
            run = self._open.pop(id, None)
            if run is None or not entry.path.is_dir():
                try:
                    run = Run(entry.path)
                except RunNotFoundError:
                    raise Refusal(f"the folder of {entry.name!r} no longer exists", status=404) from None
            self._open[id] = run  # the most recently used comes last
            if len(self._open) > _OPEN_RUNS:
                del self._open[next(iter(self._open))]
            return run

    def opened(self, id: str) -> Run | None:
        """The same if it was used recently, else None."""
        with self._lock:
            return self._open.get(id) if self.entry(id).path.is_dir() else None

    def shown(self, text: str) -> str:
        """The text of an error or a problem, without this machine's paths."""
        if not any(clean(str(root)) in text for root in self._roots):
            return clean(text)
        for entry in sorted(self._entries.values(), key=lambda entry: -len(str(entry.path))):
            text = text.replace(clean(str(entry.path)), entry.name)
        for root in sorted(self._roots, key=lambda root: -len(str(root))):
            text = text.replace(clean(str(root)), _name(root))
        return clean(text)


def _name(root: Path) -> str:
    return clean(root.name or "/")


def _why_no_run(root: Path) -> str:
    """A folder without a run may still hold pages that a debugger wrote by itself."""
    for folder in (root, root / layout.DEBUGGER):
        try:
            count = len(list_folder(str(folder)).pages)
        except OSError:
            continue
        if count:
            expected = f"{layout.epoch_folder(0)}/{layout.DEBUGGER}"
            return f"{_name(root)!r} holds {count} pages but is not a run: move them into {expected!r} inside it"
    return f"there is no run in {_name(root)!r} yet"


def _named(names: dict[Path, str]) -> list[Entry]:
    """Runs with unique names: runs of the same name show their parent folder as well, and then part of their id."""
    count = Counter(names.values())
    longer = {path: name if count[name] == 1 else f"{_name(path.parent)}/{name}" for path, name in names.items()}
    count = Counter(longer.values())
    entries = []
    for path, name in longer.items():
        mark = hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()
        slug = re.sub("[^A-Za-z0-9_]+", "-", names[path])[-24:].strip("-") or "run"
        entries.append(Entry(f"{slug}-{mark}", name if count[name] == 1 else f"{name} ({mark})", path))
    return entries
