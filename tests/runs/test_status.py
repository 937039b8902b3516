"""A run that recorded ``running`` is running only while its process is alive."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.runners.processes import finish, start, wait_for

from endoscope.runs import Run
from endoscope.runs.about import About
from endoscope.runs.process import identity
from endoscope.runs.status import SILENT, true_status

from .folders import make_training

NOW = datetime(2024, 2, 29, 12, tzinfo=UTC)
OURS = identity(os.getpid()) or ""
ENDED = f"{OURS.rpartition(' ')[0]} 1"
ELSEWHERE = "another-boot pid:[1] 17 1"
LONG_AGO, JUST_NOW = NOW - timedelta(days=3), NOW - timedelta(seconds=5)


@pytest.mark.parametrize(
    ("process", "last_heard", "expected"),
    [
        (OURS, LONG_AGO, "running"),
        (OURS, None, "running"),
        (ENDED, JUST_NOW, "died"),
        (ELSEWHERE, JUST_NOW, "running"),
        (ELSEWHERE, NOW - SILENT, "running"),
        (ELSEWHERE, NOW - SILENT - timedelta(seconds=1), "died"),
        (ELSEWHERE, NOW + timedelta(minutes=2), "running"),  # its clock is ahead of ours
        (ELSEWHERE, NOW + timedelta(days=300), "died"),
        (ELSEWHERE, None, "died"),
        (None, JUST_NOW, "running"),
        (None, LONG_AGO, "died"),
    ],
    ids=range(11),  # ids from the values would differ between the test processes
)
def test_running_or_died(process: str | None, last_heard: datetime | None, expected: str) -> None:
    assert true_status(About(status="running", process=process), last_heard, now=NOW) == expected


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_a_recorded_end_is_the_status(status: str) -> None:
    assert true_status(About(status=status, process=ENDED), LONG_AGO, now=NOW) == status  # type: ignore[arg-type]


def test_without_a_record_the_status_is_unknown() -> None:
    assert true_status(About(), JUST_NOW, now=NOW) == "unknown"


def test_when_it_was_last_heard_from(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path, status="running", process=ENDED, updated="2024-02-29T12:00:00+00:00"))
    assert run.status == "died"
    assert run.last_heard == datetime(2024, 2, 29, 12, 30, tzinfo=UTC)  # progress.json is newer
    assert run.status_text == "died; last heard from at 2024-02-29 12:30:00 UTC"
    (tmp_path / "progress.json").unlink()
    assert run.last_heard == NOW
    (tmp_path / "run.json").write_text(json.dumps({"format": "endoscope-run", "version": 1, "status": "running"}))
    assert (run.last_heard, run.status_text) == (None, "died; last heard from never")


def test_the_status_in_words(tmp_path: Path) -> None:
    assert Run(make_training(tmp_path / "a")).status_text == "finished"
    assert Run(make_training(tmp_path / "b", status="failed", error="why")).status_text == "failed: why"
    assert Run(make_training(tmp_path / "c", status="running", process=OURS)).status_text == "running"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_real_process_that_is_killed(ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, ranks, pause=0.1)
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    run = Run(folder)
    assert run.status == "running"
    assert run.about.pid is not None and run.problems == []
    os.kill(run.about.pid, signal.SIGKILL)
    process.communicate(timeout=100)
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert run.status == "died"
    assert run.last_heard is not None
    assert abs(datetime.now(UTC) - run.last_heard) < timedelta(seconds=60)
    finish(folder, ranks)
    assert run.status == "finished"
