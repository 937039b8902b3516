"""RunFolder: run.json (what the run is), config.json, and progress.json (how far it is).

Only rank 0 writes them. docs/run-folder.md is the specification.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endoscope import __version__
from endoscope.errors import ConfigError
from endoscope.runners.state.lock import FolderLock
from endoscope.runs import layout, process
from endoscope.runs.about import FORMAT, VERSION, About, Job, Status, read_about
from endoscope.runs.atomic import remove_leftovers, write_json
from endoscope.runs.files import Identity, Missing, identity, opened, read_object

log = logging.getLogger("endoscope")

BEAT_S = 5.0
"""How often a running run writes progress.json."""


class RunFolder:
    """The files that describe one run, and the lock on its folder."""

    def __init__(self, work_dir: Path, *, job: Job) -> None:
        self.path = work_dir
        self._job = job
        self._lock = FolderLock(work_dir)
        self._initial = self._mark()
        self._about: dict[str, Any] = {}
        self._progress: dict[str, Any] = {"epochs": []}
        self._beat = time.monotonic()

    # ---- one run at a time
    def in_use(self) -> str:
        """Which process runs the same job in the folder now, as a sentence; empty if none does."""
        other = read_object(self.path / layout.RUN)
        if other.get("job", self._job) != self._job or self._lock.is_free():
            return ""
        return self._user(other)

    def claim(self) -> str:
        """Lock the folder until `release`. Returns why that is impossible, as a sentence, or an empty string.

        Refused if another process holds the lock, or if anything has run in the folder since this object was made: what
        the runner read from the folder is then out of date.
        """
        if not self._lock.take():
            return self._user(read_object(self.path / layout.RUN))
        if self._mark() == self._initial:
            return ""
        self.release()
        return f"work_dir: something has run in {str(self.path)!r} since this runner was built; build it again"

    def release(self) -> None:
        self._lock.release()

    def _mark(self) -> Identity | None:
        """Identifies the run.json file, which every run replaces when it begins and when it ends."""
        try:
            return identity(os.stat(self.path / layout.RUN, follow_symlinks=False))
        except OSError:
            return None

    def _user(self, other: Mapping[str, Any]) -> str:
        who = "another process is running there"
        if other.get("status") == "running":
            since = other.get("attempt_started") or other.get("started")
            who = f"process {other.get('pid')} on {other.get('host')} has been running there since {since}"
        return f"work_dir: {str(self.path)!r} is in use: {who}; wait until it ends, or choose another folder"

    # ---- run.json, config.json
    def earlier(self) -> About:
        """The checked contents of run.json; an empty `About` if there is none."""
        try:
            with opened(self.path, layout.RUN) as file:
                return read_about(file)[0]
        except Missing:
            return About()
        except (ValueError, RecursionError, OSError) as e:
            name = str(self.path / layout.RUN)
            raise ConfigError(f"work_dir: {name!r} cannot be used: {e}\nfix it, or choose another folder") from None

    def begin(self, about: Mapping[str, Any], config: Any) -> None:
        """Write run.json with status "running", and config.json."""
        for folder in (self.path, *layout.epoch_folders(self.path).values()):
            if folder == self.path or not folder.is_symlink():  # it may lead to another run
                remove_leftovers(folder)
        earlier = read_object(self.path / layout.RUN)
        attempts, now = earlier.get("attempts"), _now()
        self._about = {
            "format": FORMAT,
            "version": VERSION,
            "job": self._job,
            "status": "running",
            "started": earlier.get("started") or now,
            "attempt_started": now,
            "attempts": (attempts if type(attempts) is int else 0) + 1,
            "command": sys.argv,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": process.identity(os.getpid()),
            "git": _git(),
            "versions": {
                "endoscope": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            **about,
        }
        self._write_about()
        write_json(self.path / layout.CONFIG, config)
        if (self.path / layout.PROGRESS).exists():  # of an earlier attempt, with epochs that are computed again
            self._write_progress()

    def end(self, status: Status, error: str | None = None) -> None:
        self._about.update(status=status, ended=_now(), error=error)
        self._write_about()

    def _write_about(self) -> None:
        self._about["updated"] = _now()
        write_json(self.path / layout.RUN, self._about)

    # ---- progress.json
    def resume(self, epochs: int) -> None:
        """Continue after the first ``epochs`` epochs. Entries of later epochs are dropped; they are computed again."""
        self._progress["epochs"] = [e for e in self._entries() if type(e.get("epoch")) is int and e["epoch"] < epochs]

    def done_before(self) -> int:
        """How many epochs earlier attempts completed, with or without a checkpoint."""
        return len(self._entries())

    def _entries(self) -> list[dict[str, Any]]:
        entries = read_object(self.path / layout.PROGRESS).get("epochs")
        return [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []

    def epoch_done(self, **facts: Any) -> None:
        self._progress["epochs"].append(facts)
        self._progress.pop("now", None)
        self._write_progress()

    def alive(self, **where: Any) -> None:
        """Called at every step; writes progress.json every `BEAT_S` seconds."""
        if time.monotonic() - self._beat > BEAT_S:
            self._progress["now"] = where
            try:
                self._write_progress()
            except OSError as e:  # the results do not depend on it
                log.warning("progress.json cannot be written: %s", e)

    def _write_progress(self) -> None:
        self._beat = time.monotonic()
        write_json(self.path / layout.PROGRESS, {"updated": _now(), **self._progress})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git() -> dict[str, Any] | None:
    """The commit of the current folder, and whether tracked files differ from it."""

    def git(*args: str) -> str:
        return subprocess.run(
            ("git", *args), capture_output=True, text=True, check=True, timeout=5, stdin=subprocess.DEVNULL
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
