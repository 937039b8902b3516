"""The addresses of the list of runs: /api/runs and /api/stamp. Cheap with a thousand runs; no page is opened.

The summary of a run is reused while its files stay the same. To notice a change, every request looks at the three files
that each run updates as it progresses, and at all files of some runs, in turn. A request reads new runs for about a
second; the rest get only their names, and the next request continues.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.runs import Epoch, Run, RunNotFoundError, layout
from endoscope.runs.about import About
from endoscope.runs.progress import Progress
from endoscope.runs.status import true_status
from endoscope.viewer.answers import Json, answer
from endoscope.viewer.footprint import File, Footprint, file_state, footprint
from endoscope.viewer.library import Entry, Library
from endoscope.viewer.selection import epoch_name, scores_name

IN_TURN = 64
"""Runs all of whose files are examined in a request that names none."""
READ_S = 1.0
"""How long a request reads runs that are not known yet."""
_PROGRESS_FILES = ("", layout.RUN, layout.PROGRESS, layout.scores_file("evaluation"))
_ERROR_LENGTH = 300  # characters shown of the error that ended a run


def routes(library: Library, clock: Callable[[], float] = time.monotonic) -> list[Route]:
    api = _Runs(library, clock)
    return [Route("/api/runs", api.runs), Route("/api/stamp", api.stamp)]


@dataclass(frozen=True, slots=True)
class _Known:
    """A run when all of its files were last examined."""

    progress_files: tuple[Any, ...]
    stamp: str
    summary: Json | None
    """The run in /api/runs, if it was requested and holds as long as the files stay the same."""


class _Runs:
    """Each request calls a method on its own thread."""

    def __init__(self, library: Library, clock: Callable[[], float]) -> None:
        self._library = library
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def runs(self, request: Request) -> Response:
        entries = self._library.entries()
        due = self._due(entries)
        named = {*request.query_params.getlist("run")}  # these are read first
        deadline = self._clock() + READ_S
        summaries: dict[str, Json | None] = {}
        left = 0
        for entry in sorted(entries, key=lambda entry: entry.id not in named):
            may_wait = summaries and entry.id not in named and entry.id not in self._known
            if may_wait and self._clock() > deadline:
                summaries[entry.id] = _unread(entry)
                left += 1
            else:
                summaries[entry.id] = self._summary(entry, examine=entry.id in due)
        runs = [summary for entry in entries if (summary := summaries[entry.id]) is not None]
        return answer({"runs": runs, "left": left, "problems": self._library.problems})

    def stamp(self, request: Request) -> Response:
        """For the named runs, all of whose files are examined, or for all runs."""
        ids = request.query_params.getlist("run")
        entries = [self._library.entry(id) for id in dict.fromkeys(ids)] if ids else self._library.entries()
        due = {*ids} or self._due(entries)
        text = " ".join(f"{entry.id} {self._stamp(entry, examine=entry.id in due)}" for entry in entries)
        return answer({"stamp": hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()})

    # ---- known runs
    def _due(self, entries: Sequence[Entry]) -> set[str]:
        """The runs whose files were examined longest ago."""
        ids = {entry.id for entry in entries}
        with self._lock:
            self._known = {id: known for id, known in self._known.items() if id in ids}
            return {id for id, _ in zip(self._known, range(IN_TURN), strict=False)}

    def _unchanged(self, entry: Entry, progress_files: tuple[Any, ...]) -> _Known | None:
        with self._lock:
            known = self._known.get(entry.id)
        return known if known is not None and known.progress_files == progress_files else None

    def _remember(self, entry: Entry, known: _Known) -> None:
        with self._lock:
            self._known.pop(entry.id, None)
            self._known[entry.id] = known  # the last one examined comes last

    def _stamp(self, entry: Entry, *, examine: bool) -> str:
        progress_files = _progress_files(entry.path)
        known = self._unchanged(entry, progress_files)
        if known is not None and not examine:
            return known.stamp
        stamp = footprint(entry.path).stamp
        summary = known.summary if known is not None and known.stamp == stamp else None
        self._remember(entry, _Known(progress_files, stamp, summary))
        return stamp

    # ---- the summary of a run
    def _summary(self, entry: Entry, *, examine: bool) -> Json | None:
        """None for a run that was removed meanwhile."""
        run = self._library.opened(entry.id)
        progress_files = _progress_files(entry.path)
        known = self._unchanged(entry, progress_files) if run is None else None  # an open run may know more by now
        if known is not None and known.summary is not None:
            if not examine:
                return known.summary
            if known.stamp == footprint(entry.path).stamp:
                self._remember(entry, known)
                return known.summary
        try:
            return self._read(entry, run or Run(entry.path), progress_files)
        except RunNotFoundError:
            return None

    def _read(self, entry: Entry, run: Run, progress_files: tuple[Any, ...]) -> Json:
        files = footprint(entry.path)
        about, progress, epochs = run.about, run.progress, run.epochs  # each access checks its file
        heard = max((at for at in (about.updated, progress.updated) if at is not None), default=None)
        status = true_status(about, heard, now=datetime.now(UTC))
        summary = {
            "id": entry.id,
            "name": entry.name,
            "kind": run.kind,
            "status": status,
            "status_text": self._library.shown(_status_text(status, about, progress)),
            **_scored(run, epochs, files),
            "class_names": list(about.class_names) if about.class_names is not None else None,
            "size": files.bytes if files.files else None,
            "last_write": files.last_write,
            "progress": _progress(about, progress),
            "problems": [self._library.shown(problem) for problem in run.problems],
        }
        is_running = status == "running"  # its process may die without changing a file
        self._remember(entry, _Known(progress_files, files.stamp, None if is_running else summary))
        if is_running:
            self._library.run(entry.id)  # stays open, so that next time only new files are read
        return summary


def _progress_files(path: Path) -> tuple[Any, ...]:
    """Changes when a run begins, completes an epoch, or ends."""
    return tuple(file_state(f"{path}/{name}") for name in _PROGRESS_FILES)


def _scored(run: Run, epochs: Sequence[Epoch], files: Footprint) -> Json:
    """The epochs, and the newest readable scores. Newer scores that cannot be read count as absent."""
    held = [_held(epoch, files) for epoch in epochs]
    table = None
    for epoch, one in zip(reversed(epochs), reversed(held), strict=True):
        if one["scores"] and (table := epoch.scores) is not None:
            break
        one["scores"] = False
    if table is None:
        return {"epochs": held, "metrics": [], "datapoints": None}
    labels = run.score_labels(table.values)
    metrics = [{"name": name, "label": labels[name], "direction": table.directions[name]} for name in table.values]
    return {"epochs": held, "metrics": metrics, "datapoints": len(table.indices)}


def _held(epoch: Epoch, files: Footprint) -> Json:
    """What an epoch's folder holds."""
    within = "" if epoch.number is None else f"{layout.epoch_folder(epoch.number)}/"
    scores = files.files.get(within + scores_name(epoch))
    return {
        "epoch": epoch_name(epoch),
        "scores": scores is not None,
        "version": _version(scores) if scores is not None else None,
        "outputs": within + layout.OUTPUTS in files.folders,
        "debugger": within + layout.DEBUGGER in files.folders,
    }


def _version(file: File) -> str:
    """A text that changes with the file."""
    return hashlib.blake2b(f"{file.bytes} {file.mtime_ns} {file.inode}".encode(), digest_size=6).hexdigest()


def _unread(entry: Entry) -> Json:
    """A run that the next request will read, in the same form."""
    head = {"id": entry.id, "name": entry.name, "kind": "unknown", "status": "unknown", "status_text": "not read yet"}
    nothing: Json = {"class_names": None, "size": None, "last_write": None, "progress": None, "problems": []}
    return {**head, "epochs": [], "metrics": [], "datapoints": None, **nothing}


def _status_text(status: str, about: About, progress: Progress) -> str:
    if status == "running":
        return f"running: {progress.stage}" if progress.stage else "running"
    if status == "unknown":
        return "status not recorded"
    if about.error and status in ("failed", "interrupted"):
        first = about.error.strip().partition("\n")[0]
        return f"{status}: {first[:_ERROR_LENGTH]}{'…' if len(first) > _ERROR_LENGTH else ''}"
    if status == "died":
        return "the process ended without recording why"
    return status


def _progress(about: About, progress: Progress) -> Json | None:
    if progress.updated is None and not progress.epochs and progress.stage is None:
        return None
    return {
        "stage": progress.stage,
        "step": progress.step if progress.step is not None or not progress.epochs else progress.epochs[-1].step,
        "epochs_done": len(progress.epochs),
        "epochs_wanted": about.epochs,
        "updated": progress.updated.timestamp() if progress.updated is not None else None,
    }
