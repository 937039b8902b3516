"""docs/run-folder.md names everything that a run's folder holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.runners.training import config, evaluation

from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state import run_folder
from endoscope.runners.state.checkpoints import load_checkpoint
from endoscope.runs.about import Status

DOC = (Path(__file__).parents[3] / "docs" / "run-folder.md").read_text()
NAMED = {name for span in re.findall(r"`([^`\n]+)`", DOC) for name in re.findall(r"[\w.]+", span)}
BY_USER = {"scores", "directions"}
"""Their keys are the names of the metric's scores."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    trained, evaluated = (tmp_path_factory.mktemp(name) for name in ("training", "evaluation"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "BEAT_S", -1.0)  # say at every step where the run is
        SupervisedTrainer(config(trained)).run()
        SupervisedEvaluator(evaluation(evaluated, checkpoint=str(trained))).run()
    return [trained, evaluated]


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, held in value.items():
            yield key
            yield from () if key in BY_USER else keys(held)
    elif isinstance(value, list):
        for held in value:
            yield from keys(held)


def unnamed(found: Iterator[str]) -> set[str]:
    return set(found) - NAMED


@pytest.mark.parametrize("name", ["run.json", "progress.json"])
def test_every_key_is_named(name: str, runs: list[Path]) -> None:
    for run in runs:
        found = json.loads((run / name).read_text())
        assert "updated" in found
        assert unnamed(keys(found)) == set()


def test_every_key_of_a_checkpoint_is_named(runs: list[Path]) -> None:
    assert unnamed(iter(load_checkpoint(runs[0] / "epoch_2" / "checkpoint.pt"))) == set()


def test_every_file_and_status_is_named(runs: list[Path]) -> None:
    files = [path.name for run in runs for folder in (run, *run.glob("epoch_*")) for path in folder.iterdir()]
    assert unnamed(name for name in files if not re.fullmatch(r"epoch_\d+", name)) == set()
    assert unnamed(iter(get_args(Status))) == set()


def test_a_missing_key_would_be_found() -> None:
    assert unnamed(keys({"epochs": [{"epoch": 0, "flux": 1}], "scores": {"mine": 1}, "scroes": 2})) - {"scores"} == {
        "flux",
        "scroes",
    }
