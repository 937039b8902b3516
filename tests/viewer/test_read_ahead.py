"""Score files read ahead: which ones, in which order, and never while somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.asgi import entered

from endoscope.runs import Epoch, Run
from endoscope.viewer import read_ahead
from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library
from endoscope.viewer.read_ahead import ReadAhead, near


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "a"
    runs.write_about(folder)
    for epoch in (0, 1, 2, 5, 6, 7):
        runs.write_table(folder / f"epoch_{epoch}", runs.usual_rows(epoch), epoch=epoch)
    (folder / "epoch_8").mkdir()  # not validated yet
    return Run(folder)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The epochs whose scores were asked for."""
    found: list[int | None] = []
    read_scores = Epoch.read_scores

    def noting(self: Epoch, *between: Callable[[], None]) -> Any:
        found.append(self.number)
        return read_scores(self, *between)

    monkeypatch.setattr(Epoch, "read_scores", noting)
    return found


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def epoch_of(run: Run, number: int) -> Epoch:
    found = run.epoch(number)
    assert found is not None
    return found


def test_nearest_first_and_only_scored_ones(run: Run) -> None:
    assert [one.number for one in near(epoch_of(run, 5))] == [5, 6, 7, 2, 1, 0]
    assert [one.number for one in near(epoch_of(run, 1))] == [1, 0, 2, 5, 6, 7]


def test_all_others_are_read_once_asked(run: Run, read: list[int | None]) -> None:
    ahead = ReadAhead(Library([run.path]))
    ahead.read_beside(epoch_of(run, 7))
    wait_until(lambda: len(read) == 6)
    assert read == [7, 6, 5, 2, 1, 0]
    ahead.read_beside(epoch_of(run, 0))  # the thread has ended, or takes this up
    wait_until(lambda: len(read) == 12)
    assert read[6:] == [0, 1, 2, 5, 6, 7]


def test_nothing_is_begun_while_somebody_waits(run: Run, read: list[int | None]) -> None:
    ahead = ReadAhead(Library([run.path]))
    with ahead.paused():
        ahead.read_beside(epoch_of(run, 7))
        time.sleep(0.1)
        assert read == []
    wait_until(lambda: len(read) == 6)


def test_not_more_than_may_be_kept(run: Run, read: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    size = (run.path / "epoch_6" / "validation_scores.json").stat().st_size
    monkeypatch.setattr(read_ahead, "_MOST_BYTES", 2 * size + size // 2)
    ahead = ReadAhead(Library([run.path]))
    ahead.read_beside(epoch_of(run, 7))
    wait_until(lambda: not any(one.name == "endoscope-read-ahead" for one in threading.enumerate()))
    assert read == [7, 6]


def test_an_evaluation_has_no_others(tmp_path: Path, read: list[int | None]) -> None:
    run = Run(runs.evaluation(tmp_path / "e"))
    ReadAhead(Library([run.path])).read_beside(run.epochs[0])
    ReadAhead(Library([run.path])).read_beside(None)
    time.sleep(0.05)
    assert read == []


def test_the_page_of_the_map_begins_before_it_asks(run: Run, read: list[int | None]) -> None:
    client = entered(create_app(Library([run.path]), token="t"), "t")
    name = client.get("/api/runs").json["runs"][0]["id"]
    read.clear()
    assert client.get("/curves", run=name).status == 200
    assert client.get("/map", run="no-such-run").status == 200
    assert read == []
    assert client.get("/map", run=name, epoch=2).status == 200
    wait_until(lambda: len(read) == 6)
    assert read == [2, 1, 0, 5, 6, 7]


def test_it_leaves_off_in_the_middle_of_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the same file has it at once, and the thread reads it again afterwards."""
    ahead, inside, go_on = ReadAhead(Library([run.path])), threading.Event(), threading.Event()
    begun = []
    leave_off = ahead._leave_off

    def between() -> None:
        begun.append(1)
        inside.set()
        assert go_on.wait(20)
        leave_off()

    monkeypatch.setattr(ahead, "_leave_off", between)
    epoch = epoch_of(run, 5)
    ahead.read_beside(epoch)
    assert inside.wait(20)
    with ahead.paused():
        go_on.set()
        assert epoch.scores is not None  # or this waits for ever
        assert len(begun) == 1
    wait_until(lambda: not ahead._works)
    assert len(begun) == 6  # five others; the first is known by now
