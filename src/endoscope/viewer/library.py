"""Library: the runs of this server by their ids, and what a query selects of them.

A request names a run by an id, an epoch and a datapoint by a number. No path is ever made of what a request says.
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
from fractions import Fraction
from pathlib import Path
from typing import Literal

from starlette.datastructures import QueryParams

from endoscope.errors import EndoscopeError
from endoscope.pages.files import list_folder
from endoscope.runs import Epoch, Run, RunNotFoundError, find_runs, layout
from endoscope.runs.files import clean
from endoscope.runs.ranking import PERCENTILE

MOST_RUNS = 16
"""Runs that one query may name."""
_OPEN_RUNS = 32  # whose files may be kept in memory
_LOOK_AGAIN_S = 1.0
_LOOK_SHARE = 20  # looking for runs takes at most one part of so many of the time

WantedEpoch = int | Literal["eval"] | None


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

    Runs that appear later are found. An id is the same the next time that the server is started. May be used from
    several threads.
    """

    def __init__(
        self, folders: Sequence[str | os.PathLike[str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._roots = [*dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders)]
        self._clock = clock
        self._lock = threading.RLock()
        self._open: dict[str, Run] = {}
        self._entries: dict[str, Entry] = {}
        self._problems: list[str] = []
        self._look_at = 0.0
        for root in self._roots:
            if not root.is_dir():
                raise RunNotFoundError(
                    f"there is no folder {str(root)!r}; give the work_dir of a run, or a folder of runs"
                )
        self._look()

    # ---- which runs there are
    def entries(self) -> list[Entry]:
        """Every run, in the order of the folders and then by path."""
        with self._lock:
            if self._clock() >= self._look_at:
                self._look()
            return [*self._entries.values()]

    @property
    def problems(self) -> list[str]:
        """Where no run was found, and where was not looked."""
        return [self.shown(problem) for problem in self._problems]

    def _look(self) -> None:
        began = self._clock()
        found: dict[Path, str] = {}
        problems = []
        for root in self._roots:
            try:
                there = find_runs(root)
            except RunNotFoundError:
                problems.append(f"the folder {_name(root)!r} is no longer there")
                continue
            problems += [f"{_name(root)}: {problem}" for problem in there.problems]
            if not there.runs:
                problems.append(_nothing(root))
            for run in there.runs:
                inside = "" if run.path == root else run.path.relative_to(root).as_posix()
                found.setdefault(run.path, clean(inside) or _name(root))
        self._entries = {entry.id: entry for entry in _named(found)}
        self._problems = problems
        now = self._clock()
        self._look_at = now + max(_LOOK_AGAIN_S, _LOOK_SHARE * (now - began))

    def entry(self, id: str) -> Entry:
        """The run of that id; `Refusal` when there is none."""
        with self._lock:
            found = self._entries.get(id) or next((entry for entry in self.entries() if entry.id == id), None)
        if found is None:
            raise Refusal("there is no such run here", hint="Choose one on the page of runs.", status=404)
        return found

    def run(self, id: str) -> Run:
        """What the run of that id holds; `Refusal` when there is none, or its folder was removed."""
        entry = self.entry(id)
        with self._lock:
            run = self._open.pop(id, None)
            if run is None or not entry.path.is_dir():
                try:
                    run = Run(entry.path)
                except RunNotFoundError:
                    raise Refusal(f"the folder of {entry.name!r} is no longer there", status=404) from None
            self._open[id] = run  # the last one used comes last
            if len(self._open) > _OPEN_RUNS:
                del self._open[next(iter(self._open))]
            return run

    def opened(self, id: str) -> Run | None:
        """The same when it has been asked for lately; None for others."""
        with self._lock:
            return self._open.get(id) if self.entry(id).path.is_dir() else None

    def shown(self, text: str) -> str:
        """The text of an error or a problem, without the places of this machine's folders."""
        if not any(clean(str(root)) in text for root in self._roots):
            return clean(text)
        for entry in sorted(self._entries.values(), key=lambda entry: -len(str(entry.path))):
            text = text.replace(clean(str(entry.path)), entry.name)
        for root in sorted(self._roots, key=lambda root: -len(str(root))):
            text = text.replace(clean(str(root)), _name(root))
        return clean(text)


def _name(root: Path) -> str:
    return clean(root.name or "/")


def _nothing(root: Path) -> str:
    """Why there is no run in a folder: it may hold pages of a debugger that was told to write there."""
    for folder in (root, root / layout.DEBUGGER):
        try:
            count = len(list_folder(str(folder)).pages)
        except OSError:
            continue
        if count:
            wanted = f"{layout.epoch_folder(0)}/{layout.DEBUGGER}"
            return f"{_name(root)!r} holds {count} pages, but is no run: move them into {wanted!r} inside of it"
    return f"there is no run in {_name(root)!r} yet"


def _named(found: dict[Path, str]) -> list[Entry]:
    """Runs with a name that tells them apart; runs of the same name show the folder above as well."""
    often = Counter(found.values())
    names = {path: name if often[name] == 1 else f"{_name(path.parent)}/{name}" for path, name in found.items()}
    often = Counter(names.values())
    entries = []
    for path, name in names.items():
        mark = hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()
        slug = re.sub("[^A-Za-z0-9_]+", "-", found[path])[-24:].strip("-") or "run"
        entries.append(Entry(f"{slug}-{mark}", name if often[name] == 1 else f"{name} ({mark})", path))
    return entries


# ---------------------------------------------------------------- what a query selects
@dataclass(frozen=True, slots=True)
class Selection:
    """What a query names: one or several runs, where it says so an epoch, a score and a datapoint, and which fail.

    >>> selection = Selection.of(request.query_params, library)
    >>> selection.entry.name, selection.run, selection.epoch, selection.metric, selection.dp
    ('digits', <Run ...>, 4, 'loss', 17)
    """

    entries: tuple[Entry, ...]
    runs: tuple[Run, ...]
    """At least one; as many as `entries`."""
    epoch: WantedEpoch
    """As asked for; `epoch_of` gives that of a run."""
    metric: str | None
    dp: int | None
    percentile: Fraction
    """Of a run's datapoints fail, as `ranking.Column.fails` has it."""

    @classmethod
    def of(cls, query: QueryParams, library: Library) -> Selection:
        """`Refusal` when a value cannot be one, or names a run that is not here. Without one the first run is meant."""
        ids = [*dict.fromkeys(query.getlist("run"))] or [entry.id for entry in library.entries()[:1]]
        if not ids:
            raise Refusal("there is no run yet", hint="This page shows one as soon as it is written.", status=404)
        if len(ids) > MOST_RUNS:
            raise Refusal(f"{len(ids)} runs are too many at once", hint=f"Choose at most {MOST_RUNS}.")
        entries = tuple(map(library.entry, ids))
        runs = tuple(map(library.run, ids))
        epoch, metric, dp = _epoch(query.get("epoch")), query.get("metric") or None, whole(query, "dp")
        return cls(entries, runs, epoch, metric, dp, _percentile(query.get("percentile")))

    @property
    def entry(self) -> Entry:
        return self.entries[0]

    @property
    def run(self) -> Run:
        return self.runs[0]

    def needed_dp(self) -> int:
        if self.dp is None:
            raise Refusal("the query names no datapoint", hint="Add dp=, the datapoint's index.")
        return self.dp


def epoch_of(run: Run, wanted: WantedEpoch = None) -> Epoch | None:
    """The wanted epoch of a run; None when it has no such.

    The last one with scores where none is named, or else the last one. An evaluation has only its own, whichever
    number is asked for.
    """
    epochs = run.epochs
    if isinstance(wanted, int) and run.kind != "evaluation":
        return next((epoch for epoch in epochs if epoch.number == wanted), None)
    scored = (epoch for epoch in reversed(epochs) if epoch.holds(scores_name(epoch)))
    return next(scored, epochs[-1] if epochs else None)


def needed_epoch(run: Run, wanted: WantedEpoch = None) -> Epoch:
    """The same; `Refusal` when there is none."""
    found = epoch_of(run, wanted)
    if found is None and wanted is None:
        raise Refusal("this run has no epoch yet", hint="This page shows it as soon as it is written.", status=404)
    if found is None:
        raise Refusal(f"this run has no epoch {wanted}", hint=_which(run), status=404)
    return found


def scores_name(epoch: Epoch) -> str:
    """The name of an epoch's score file."""
    return layout.scores_file("evaluation" if epoch.number is None else "validation")


def epoch_name(epoch: Epoch) -> int | Literal["eval"]:
    """An epoch as JSON has it."""
    return "eval" if epoch.number is None else epoch.number


def whole(query: QueryParams, name: str) -> int | None:
    """A whole number of a query; None when it is left out."""
    text = query.get(name)
    if not text:
        return None
    if not re.fullmatch("-?(0|[1-9][0-9]{0,18})", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise Refusal(f"{name}={clean(text)[:40]!r} is no whole number of 64 bits")
    return int(text)


def _percentile(text: str | None) -> Fraction:
    """As it is written, so that 7 % of 100 are 7 and not 8."""
    if not text:
        return PERCENTILE
    digits = text.replace(".", "", 1)
    if not digits.isascii() or not digits.isdecimal() or len(text) > 12 or Fraction(text) > 100:
        raise Refusal(f"percentile={clean(text)[:40]!r} is no percentage", hint="Give a number from 0 to 100.")
    return Fraction(text)


def _epoch(text: str | None) -> WantedEpoch:
    if not text or text == "eval":
        return "eval" if text else None
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text):
        raise Refusal(f"epoch={clean(text)[:40]!r} is no epoch", hint="Epochs are 0, 1, 2 ..., or eval.")
    return int(text)


def _which(run: Run) -> str:
    numbers = [epoch.number for epoch in run.epochs]
    return f"It has {len(numbers)}, from {numbers[0]} to {numbers[-1]}." if numbers else "It has none yet."
