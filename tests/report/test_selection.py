"""Mistakes in the selection for a page are reported before a file is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.viewer import runs

from endoscope.cli import main


def refusal(folder: Path, file: Path, *options: str) -> str:
    """The error of ``view --export``, which writes nothing."""
    done = CliRunner().invoke(main, ["view", str(folder), "--export", str(file), *options], catch_exceptions=False)
    assert done.exit_code == 2
    assert not file.exists()
    return done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--datapoints", "3,x"], "--datapoints is '3,x'; expected whole numbers with commas"),
        (["--datapoints", "3", "--worst", "2"], "choose one of them"),
        (["--epochs", "first"], "expected last, all, or whole numbers"),
        (["--epochs", "9"], "no run has an epoch 9; there are 0 to 2"),
        (["--datapoints", "3,999"], "no run has a datapoint 999 in these epochs; there are 12, from 0 to 11"),
        (["--metric", "los"], "no datapoint has the score 'los'; closest: 'loss'"),
        (["--worst", "5000"], "at most 1000 datapoints"),
    ],
)
def test_a_mistake_in_an_option(trained: Path, tmp_path: Path, options: list[str], text: str) -> None:
    assert text in refusal(trained, tmp_path / "a.html", *options)


def test_a_page_without_content_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    nothing = runs.empty(tmp_path / "nothing")
    assert f"there is nothing to export: no run is in {str(nothing)!r}" in refusal(nothing, file)
    started = runs.just_started(tmp_path / "started")
    assert "no run has a score or a loss yet; nothing was captured either" in refusal(started, file)
    captured = tmp_path / "captured"
    runs.write_pages(captured / "epoch_4" / "debugger", {(5, 7): runs.seen_of([5, 7])})
    text = "no run has a score or a loss yet; there are 2, from 5 to 7; choose some with --datapoints"
    assert text in refusal(captured, file)
    text = "no run has a datapoint 6 in these epochs; there are 2, from 5 to 7"
    assert text in refusal(captured, file, "--datapoints", "5,6")
    evaluated = runs.evaluation(tmp_path / "evaluated")
    assert "no run has an epoch 99; there are none; leave --epochs out" in refusal(evaluated, file, "--epochs", "99")
