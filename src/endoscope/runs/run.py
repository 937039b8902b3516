"""Run: the folder of a run, read on demand, so that a live run shows its growth. Executes nothing from the folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import EndoscopeError, PageError
from endoscope.pages.files import Listing, sort_names
from endoscope.pages.reader import Damage, DebugOutputs
from endoscope.runs import fields, layout
from endoscope.runs.about import About, read_about
from endoscope.runs.fields import Direction
from endoscope.runs.files import (
    MB,
    Decoded,
    Files,
    Missing,
    Unreadable,
    checked,
    identity,
    load_json,
    open_folder,
)
from endoscope.runs.progress import Progress, read_progress
from endoscope.runs.score_table import ScoreTable, read_table
from endoscope.runs.scores import score_label
from endoscope.runs.status import Status, true_status

Kind = Literal["training", "evaluation", "unknown"]

LOSSES_LIMIT = 64 * MB
"""Bytes of the largest training_losses.json that is read."""
_OPEN_FOLDERS = 16  # folders of pages that stay open

Losses = Mapping[str, NDArray[np.float64]]


class RunNotFoundError(EndoscopeError, FileNotFoundError):
    """There is no such folder."""


class Run:
    """One run, training or evaluation.

    >>> run = Run("runs/digits")
    >>> run.kind, run.status, run.class_names
    ('training', 'finished', ('0', '1', ...))
    >>> run.epochs[-1].scores.aggregated["accuracy"]
    0.97
    >>> run.epochs[-1].debugger[17]["features"]["feature_map"]
    >>> run.problems                    # what could not be read so far
    []

    Only a missing folder is an error. Files that are missing, damaged or not regular read as None or empty, and
    `problems` says so. No link inside the folder is followed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunNotFoundError(f"there is no folder {str(self.path)!r}")
        self._files = Files(self.path)
        self._pages = _Pages(self._files)

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def about(self) -> About:
        """The contents of run.json; empty if there is none."""
        return self._files.read(layout.RUN, read_about) or About()

    @property
    def kind(self) -> Kind:
        """From run.json, or else from the names in the folder."""
        job = self.about.job
        if job is not None:
            return "training" if job == "train" else "evaluation"
        names = self._names()
        if any(layout.epoch_of(name) is not None for name in names):
            return "training"
        return "evaluation" if layout.scores_file("evaluation") in names else "unknown"

    @property
    def status(self) -> Status:
        """From run.json, but ``died`` if it says ``running`` and the process is gone or has been silent for long."""
        return true_status(self.about, self.last_heard, now=datetime.now(UTC))

    @property
    def status_text(self) -> str:
        """The status with its error, or with the time of the last write of a run that died."""
        status, about = self.status, self.about
        if status == "died":
            at = self.last_heard
            return f"died; last heard from {f'at {at:%Y-%m-%d %H:%M:%S} UTC' if at is not None else 'never'}"
        return f"{status}: {about.error}" if status in ("failed", "interrupted") and about.error else status

    @property
    def last_heard(self) -> datetime | None:
        """When run.json or progress.json was last written, by the clock of the machine that wrote it."""
        return max((at for at in (self.about.updated, self.progress.updated) if at is not None), default=None)

    @property
    def config(self) -> Any:
        """config.json as plain data: dicts, lists, text and numbers; None if it cannot be read."""
        return self._files.read(layout.CONFIG, lambda file: (checked(load_json(file)), []))

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.about.class_names

    @property
    def directions(self) -> Mapping[str, Direction]:
        """For each score, whether higher or lower is better: from run.json, or else from the newest scores."""
        if directions := self.about.directions:
            return directions
        newest = next((scores for epoch in reversed(self.epochs) if (scores := epoch.scores) is not None), None)
        return newest.directions if newest is not None else {}

    def score_labels(self, names: Iterable[str]) -> dict[str, str]:
        """The display names of scores; a score of one class has the name of the class."""
        about = self.about
        by_class = about.by_class or ()
        return {name: score_label(name, by_class=by_class, class_names=about.class_names) for name in names}

    @property
    def progress(self) -> Progress:
        """The contents of progress.json; empty if there is none, as in a short evaluation."""

        def needed() -> bool:
            return self.about.status == "finished" and self.kind == "training"

        return self._files.read(layout.PROGRESS, read_progress, needed=needed) or Progress()

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that have a folder, in order. An evaluation has one epoch, with the number None."""
        if self.kind == "evaluation":
            return [Epoch(self, None)]
        numbers = sorted(epoch for name in self._names() if (epoch := layout.epoch_of(name)) is not None)
        return [Epoch(self, number) for number in numbers]

    def epoch(self, number: int | None) -> Epoch | None:
        """One epoch; None if it has no folder."""
        return next((epoch for epoch in self.epochs if epoch.number == number), None)

    @property
    def datapoints(self) -> DebugOutputs | None:
        """``inputs``, ``labels`` and ``meta_info`` of the saved datapoints; None if none was saved."""
        return self._pages.open(layout.DATAPOINTS)

    @property
    def problems(self) -> list[str]:
        """What could not be read of run.json, config.json, progress.json and of everything read so far."""
        _ = self.about, self.config, self.progress
        return self._files.problems

    def damage_seen(self, folder: str) -> int:
        """How much damage was seen so far in a folder of pages, such as ``epoch_4/debugger``; does not open it."""
        return self._pages.damage_seen(folder)

    def _names(self) -> list[str]:
        try:
            with open_folder(self.path) as fd:
                names = os.listdir(fd)
        except (Unreadable, OSError) as e:
            self._files.note("the folder", [str(e)])
            return []
        self._files.note("the folder", [])
        return names

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}: {self.kind}, {self.status}>"

    def _repr_html_(self) -> str:
        from endoscope.report.notebook import run_html  # not above: the reports import this module

        return run_html(self)


class Epoch:
    """One epoch of training with its validation, or an evaluation: scores, losses, pages.

    >>> epoch = run.epoch(4)
    >>> epoch.scores.values["loss"], epoch.losses["loss"]
    >>> epoch.outputs[17]["outputs"], epoch.debugger[17]
    """

    def __init__(self, run: Run, number: int | None) -> None:
        self.run = run
        self.number = number
        """From 0; None for an evaluation."""
        self._within = "" if number is None else f"{layout.epoch_folder(number)}/"

    @property
    def path(self) -> Path:
        return self.run.path / self._within

    @property
    def scores(self) -> ScoreTable | None:
        """The scores of every datapoint, and over all; None before they exist."""
        split: layout.Split = "evaluation" if self.number is None else "validation"
        return self._files.read(self._within + layout.scores_file(split), read_table, needed=self._is_complete)

    @property
    def losses(self) -> Losses:
        """The ``loss`` of each training batch, in order, and each named part of it; empty if there are none."""
        if self.number is None:
            return {}
        return self._files.read(self._within + layout.TRAINING_LOSSES, _read_losses, needed=self._is_complete) or {}

    @property
    def outputs(self) -> DebugOutputs | None:
        """The model's ``outputs`` of the saved datapoints; None if none was saved."""
        return self.run._pages.open(self._within + layout.OUTPUTS)

    @property
    def debugger(self) -> DebugOutputs | None:
        """The debug outputs; None if no debugger was enabled."""
        return self.run._pages.open(self._within + layout.DEBUGGER)

    def holds(self, name: str) -> bool:
        """Whether a file or folder of that name exists, such as `layout.CHECKPOINT`; does not open it."""
        return os.path.lexists(self.path / name)

    def _is_complete(self) -> bool:
        """Whether its files must exist. Files of the last epoch may not have been written yet."""
        return self.run.about.status == "finished" or self.run.epochs[-1:] not in ([], [self])

    @property
    def _files(self) -> Files:
        return self.run._files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Epoch) and (self.run.path, self.number) == (other.run.path, other.number)

    def __hash__(self) -> int:
        return hash((self.run.path, self.number))

    def __repr__(self) -> str:
        return f"<Epoch {self.number} of {str(self.run.path)!r}>"


class _Pages:
    """The folders of pages of a run, opened on demand, and again when their files have changed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: dict[str, DebugOutputs] = {}  # the most recently used last
        self._seen: dict[str, tuple[int, list[Damage]]] = {}  # by folder: the state of its files, and their damage
        self._lock = threading.Lock()

    def open(self, name: str) -> DebugOutputs | None:
        with self._lock:
            try:
                outputs, problems = self._find(name)
            except Missing:
                outputs, problems = None, []
            except (Unreadable, OSError, PageError) as e:
                outputs, problems = None, [str(e)]
            self._files.note(name, problems)
            return outputs

    def _find(self, name: str) -> Decoded[DebugOutputs | None]:
        state, listing = _listed(self._files.root, name)
        if listing.pickles and not listing.pages:
            return None, ["it holds pickle pages, which can run code and are not opened; see endoscope pages import"]
        outputs = self._open.pop(name, None)
        earlier, damage = self._seen.get(name, (None, []))
        if outputs is None or state != earlier:
            outputs = DebugOutputs(self._files.root / name, listing=listing)
            if state == earlier:  # it was closed meanwhile, and its damage is not forgotten
                outputs.known_damage += [each for each in damage if each not in outputs.known_damage]
        self._open[name], self._seen[name] = outputs, (state, outputs.known_damage)
        if len(self._open) > _OPEN_FOLDERS:
            self._open.pop(next(iter(self._open)))  # closes when its last user releases it
        return outputs, [str(each) for each in outputs.known_damage]

    def damage_seen(self, name: str) -> int:
        with self._lock:
            return len(self._seen[name][1]) if name in self._seen else 0


def _listed(root: Path, name: str) -> tuple[int, Listing]:
    """The state of a folder's pages and catalogues, as a hash, and its listing."""
    with open_folder(root, name) as fd, os.scandir(fd) as entries:
        by_name = {entry.name: entry for entry in entries}
        listing = sort_names(by_name)
        of_pages = (f"{page}.{part}" for page in listing.pages for part in ("jsonl", "safetensors"))
        files = (file for file in (*listing.catalogues, *of_pages) if file in by_name)
        return hash(tuple((file, identity(by_name[file].stat(follow_symlinks=False))) for file in files)), listing


def _read_losses(file: BinaryIO) -> Decoded[Losses]:
    content = load_json(file, limit=LOSSES_LIMIT)
    if not isinstance(content, dict):
        raise Unreadable(f"it holds {fields.shown(content)}; expected an object")
    f = fields.Fields(content)
    return {name: losses for name in content if (losses := f.take(name, _array)) is not None}, f.problems


def _array(value: Any) -> NDArray[np.float64]:
    return np.array(fields.numbers(value), np.float64)
