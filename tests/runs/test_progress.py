"""progress.json: every epoch that can be read."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from endoscope.runs.files import Files
from endoscope.runs.progress import Progress, read_progress

from .folders import PROGRESS


def read(folder: Path, progress: Any) -> tuple[Progress | None, list[str]]:
    (folder / "progress.json").write_text(json.dumps(progress))
    files = Files(folder)
    return files.read("progress.json", read_progress), [p.removeprefix("progress.json: ") for p in files.problems]


def test_how_far_it_is(tmp_path: Path) -> None:
    progress, problems = read(tmp_path, PROGRESS)
    assert progress is not None and not problems
    assert progress.updated == datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    assert (progress.stage, progress.step) == ("epoch 2 training", 12)
    assert [one.epoch for one in progress.epochs] == [0, 1]
    last = progress.epochs[-1]
    assert (last.step, last.learning_rates, last.train_s, last.val_s) == (10, (0.1,), 1.5, 0.5)
    assert last.loss == {"mean": 0.5, "count": 5.0, "non_finite": 0.0}
    assert last.scores["accuracy"] == 0.5 and math.isnan(last.scores["loss"])


def test_epochs_come_in_order_and_the_last_entry_counts(tmp_path: Path) -> None:
    progress, problems = read(tmp_path, {"epochs": [{"epoch": 1, "step": 1}, {"epoch": 0}, {"epoch": 1, "step": 2}]})
    assert progress is not None and not problems
    assert [(one.epoch, one.step) for one in progress.epochs] == [(0, None), (1, 2)]


@pytest.mark.parametrize(
    ("progress", "problem"),
    [
        ([], "it holds a list; expected an object"),
        ({"epochs": 5}, "epochs is 5; expected a list"),
        ({"epochs": [7]}, "epochs.0 is 7; expected an object"),
        ({"epochs": [{}]}, "epochs.0 has no epoch number"),
        ({"epochs": [{"epoch": 0, "step": "x"}]}, "epochs.0.step is 'x'; expected a whole number, 0 or more"),
        ({"epochs": [{"epoch": 0, "loss": []}]}, "epochs.0.loss is a list; expected an object"),
        ({"epochs": [{"epoch": 0, "scores": {"a": "b"}}]}, "epochs.0.scores.a is 'b'; expected a number"),
        ({"epochs": [{"epoch": 0, "scores": {"a": 10**400}}]}, "epochs.0.scores.a is 1000"),
        (
            {"epochs": [{"epoch": 0, "learning_rates": [None]}]},
            "epochs.0.learning_rates is a list; expected a list",
        ),
        ({"now": "here"}, "now is 'here'; expected an object"),
        ({"now": {"stage": 1}}, "now.stage is 1; expected a string"),
    ],
)
def test_invalid_fields_are_reported(progress: Any, problem: str, tmp_path: Path) -> None:
    assert any(message.startswith(problem) for message in read(tmp_path, progress)[1])


def test_a_wrong_entry_leaves_the_others(tmp_path: Path) -> None:
    progress, problems = read(tmp_path, {"epochs": [*PROGRESS["epochs"], 7, {"epoch": 2, "val_s": "long"}]})
    assert progress is not None
    assert [one.epoch for one in progress.epochs] == [0, 1, 2]
    assert progress.epochs[2].val_s is None
    assert len(problems) == 2
