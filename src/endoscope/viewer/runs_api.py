"""The addresses about which runs there are: /api/runs and /api/stamp. Cheap with a thousand of them.

No page is opened. What was told of a run is told again while its files stay the same. Whether they do is seen from
three of them in every run, which it writes as it gets on, and from all of them in some runs at each request, in turn.
A request reads for about a second: of runs that are left then only the name is told, and the next request goes on.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.runs import Epoch, Run, RunNotFoundError, layout
from endoscope.runs.about import About
from endoscope.runs.files import identity
from endoscope.runs.progress import Progress
from endoscope.runs.status import true_status
from endoscope.viewer.answers import answer
from endoscope.viewer.footprint import File, Footprint, footprint
from endoscope.viewer.library import Entry, Library, epoch_name, scores_name

IN_TURN = 64
"""Runs all of whose files are looked at in a request that names none."""
READ_S = 1.0
"""How long a request reads runs of which nothing is known yet."""
_TELLING = ("", layout.RUN, layout.PROGRESS, layout.scores_file("evaluation"))
_ERROR_SHOWN = 300  # characters of the text that ended a run


def routes(library: Library, clock: Callable[[], float] = time.monotonic) -> list[Route]:
    api = _Runs(library, clock)
    return [Route("/api/runs", api.runs), Route("/api/stamp", api.stamp)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run as it was when all of its files were looked at."""

    quick: tuple[Any, ...]
    stamp: str
    told: Mapping[str, Any] | None
    """What /api/runs says of it, where that was asked for and stays true while the files stay the same."""


class _Runs:
    """Each method is called on a thread of its own."""

    def __init__(self, library: Library, clock: Callable[[], float]) -> None:
        self._library = library
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def runs(self, request: Request) -> Response:
        entries = self._library.entries()
        due = self._due(entries)
        wanted = {*request.query_params.getlist("run")}  # these are read first
        until = self._clock() + READ_S
        told: dict[str, Mapping[str, Any] | None] = {}
        left = 0
        for entry in sorted(entries, key=lambda entry: entry.id not in wanted):
            if told and entry.id not in wanted and entry.id not in self._seen and self._clock() > until:
                told[entry.id] = _unread(entry)
                left += 1
            else:
                told[entry.id] = self._summary(entry, again=entry.id in due)
        runs = [one for entry in entries if (one := told[entry.id]) is not None]
        return answer({"runs": runs, "left": left, "problems": self._library.problems})

    def stamp(self, request: Request) -> Response:
        """Of the runs that are named, all of whose files are looked at, or of all runs and of which there are."""
        ids = request.query_params.getlist("run")
        entries = [self._library.entry(id) for id in dict.fromkeys(ids)] if ids else self._library.entries()
        due = {*ids} or self._due(entries)
        text = " ".join(f"{entry.id} {self._stamp(entry, again=entry.id in due)}" for entry in entries)
        return answer({"stamp": hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()})

    # ---- what is known already
    def _due(self, entries: Sequence[Entry]) -> set[str]:
        """The runs whose files were looked at the longest ago."""
        there = {entry.id for entry in entries}
        with self._lock:
            self._seen = {id: seen for id, seen in self._seen.items() if id in there}
            return {id for id, _ in zip(self._seen, range(IN_TURN), strict=False)}

    def _known(self, entry: Entry, quick: tuple[Any, ...]) -> _Seen | None:
        with self._lock:
            seen = self._seen.get(entry.id)
        return seen if seen is not None and seen.quick == quick else None

    def _keep(self, entry: Entry, seen: _Seen) -> None:
        with self._lock:
            self._seen.pop(entry.id, None)
            self._seen[entry.id] = seen  # the last one looked at comes last

    def _stamp(self, entry: Entry, *, again: bool) -> str:
        quick = _quick(entry.path)
        known = self._known(entry, quick)
        if known is not None and not again:
            return known.stamp
        stamp = footprint(entry.path).stamp
        self._keep(entry, _Seen(quick, stamp, known.told if known is not None and known.stamp == stamp else None))
        return stamp

    # ---- a run in short
    def _summary(self, entry: Entry, *, again: bool) -> Mapping[str, Any] | None:
        run = self._library.opened(entry.id)
        quick = _quick(entry.path)
        known = self._known(entry, quick) if run is None else None  # of one that is read more may be known
        if known is not None and known.told is not None and not again:
            return known.told
        there = footprint(entry.path)
        if known is not None and known.told is not None and known.stamp == there.stamp:
            self._keep(entry, known)
            return known.told
        try:
            run = run or Run(entry.path)
        except RunNotFoundError:
            return None  # removed meanwhile
        told = self._told(entry, run, there)
        settled = told["status"] != "running"  # a process may end without a word
        self._keep(entry, _Seen(quick, there.stamp, told if settled else None))
        if not settled:
            self._library.run(entry.id)  # stays open, so that the next time only what is new is read
        return told

    def _told(self, entry: Entry, run: Run, there: Footprint) -> Mapping[str, Any]:
        about, progress, epochs = run.about, run.progress, run.epochs  # each one looks at its file
        heard = max((at for at in (about.updated, progress.updated) if at is not None), default=None)
        status = true_status(about, heard, now=datetime.now(UTC))
        return {
            "id": entry.id,
            "name": entry.name,
            "kind": run.kind,
            "status": status,
            "status_text": self._library.shown(_status_text(status, about, progress)),
            **_scored(run, epochs, there),
            "class_names": list(about.class_names) if about.class_names is not None else None,
            "size": there.bytes if there.files else None,
            "last_write": there.last_write,
            "progress": _progress(about, progress),
            "problems": [self._library.shown(problem) for problem in run.problems],
        }


def _quick(path: Path) -> tuple[Any, ...]:
    """Changes when a run begins, gets on by an epoch, or ends."""
    return tuple(_identity(f"{path}/{name}") for name in _TELLING)


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        return identity(os.lstat(path))
    except OSError:
        return None


def _scored(run: Run, epochs: Sequence[Epoch], there: Footprint) -> dict[str, Any]:
    """The epochs, and what the newest scores say that can be read. Newer ones, which cannot, count as none."""
    told = [_holds(epoch, there) for epoch in epochs]
    table = None
    for epoch, one in zip(reversed(epochs), reversed(told), strict=True):
        if one["scores"] and (table := epoch.scores) is not None:
            break
        one["scores"] = False
    if table is None:
        return {"epochs": told, "metrics": [], "datapoints": None}
    labels = run.score_labels(table.values)
    metrics = [{"name": name, "label": labels[name], "direction": table.directions[name]} for name in table.values]
    return {"epochs": told, "metrics": metrics, "datapoints": len(table.indices)}


def _within(epoch: Epoch) -> str:
    return "" if epoch.number is None else f"{layout.epoch_folder(epoch.number)}/"


def _holds(epoch: Epoch, there: Footprint) -> dict[str, Any]:
    within = _within(epoch)
    return {
        "epoch": epoch_name(epoch),
        "scores": within + scores_name(epoch) in there.files,
        "version": _version(there.files.get(within + scores_name(epoch))),
        "outputs": within + layout.OUTPUTS in there.folders,
        "debugger": within + layout.DEBUGGER in there.folders,
    }


def _version(file: File | None) -> str | None:
    """Another text when the file is another."""
    if file is None:
        return None
    return hashlib.blake2b(f"{file.bytes} {file.mtime_ns} {file.inode}".encode(), digest_size=6).hexdigest()


def _unread(entry: Entry) -> dict[str, Any]:
    """A run that comes with the next request, in the same form."""
    told = {"id": entry.id, "name": entry.name, "kind": "unknown", "status": "unknown", "status_text": "not read yet"}
    nothing: dict[str, Any] = {"class_names": None, "size": None, "last_write": None, "progress": None, "problems": []}
    return {**told, "epochs": [], "metrics": [], "datapoints": None, **nothing}


def _status_text(status: str, about: About, progress: Progress) -> str:
    if status == "running":
        return f"running: {progress.stage}" if progress.stage else "running"
    if status == "unknown":
        return "the folder does not say"
    if about.error and status in ("failed", "interrupted"):
        first = about.error.strip().partition("\n")[0]
        return f"{status}: {first[:_ERROR_SHOWN]}{'…' if len(first) > _ERROR_SHOWN else ''}"
    if status == "died":
        return "its process is no longer there, and it has not said how it ended"
    return status


def _progress(about: About, progress: Progress) -> dict[str, Any] | None:
    if progress.updated is None and not progress.epochs and progress.stage is None:
        return None
    return {
        "stage": progress.stage,
        "step": progress.step if progress.step is not None or not progress.epochs else progress.epochs[-1].step,
        "epochs_done": len(progress.epochs),
        "epochs_wanted": about.epochs,
        "updated": progress.updated.timestamp() if progress.updated is not None else None,
    }
