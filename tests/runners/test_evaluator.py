"""BaseEvaluator: every datapoint scored and looked into, with the weights of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import load_debug_outputs
from endoscope.errors import ConfigError
from endoscope.runners.checkpoints import CheckpointError
from endoscope.runners.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runs.scores import read_scores

from .training import VAL, Blobs, Net, config, evaluation, node


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    SupervisedTrainer(config(folder)).run()
    return folder


def test_the_work_folder(trained: Path, tmp_path: Path) -> None:
    SupervisedEvaluator(evaluation(tmp_path, checkpoint=str(trained))).run()
    assert {p.name for p in tmp_path.iterdir()} == {
        "run.json", "config.json", "evaluation_scores.json", "debugger", "datapoints", "outputs",
    }  # fmt: skip
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["status"], run["job"], run["class_names"]) == ("finished", "eval", ["red", "green", "blue"])
    assert sorted(load_debug_outputs(tmp_path)) == list(range(VAL))


@pytest.mark.parametrize("where", ["", "epoch_2", "epoch_2/checkpoint.pt"])
def test_it_scores_as_the_validation_of_that_epoch_did(where: str, trained: Path, tmp_path: Path) -> None:
    scores = SupervisedEvaluator(evaluation(tmp_path, checkpoint=str(trained / where))).run()
    assert scores is not None
    validation = read_scores(trained / "epoch_2" / "validation_scores.json")
    assert scores.per_datapoint == validation.per_datapoint
    assert read_scores(tmp_path / "evaluation_scores.json").aggregated == validation.aggregated == scores.aggregated


def test_the_capture_is_what_the_model_computes(trained: Path, tmp_path: Path) -> None:
    evaluator = SupervisedEvaluator(evaluation(tmp_path, checkpoint=str(trained)))
    evaluator.run()
    seen, data = load_debug_outputs(tmp_path), Blobs(VAL, seed=1)
    for k in range(VAL):
        expected = evaluator.network.a(data.points[k : k + 1])
        torch.testing.assert_close(seen[k]["maps"]["feature_map"], expected)


def test_without_a_checkpoint_the_model_is_taken_as_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SupervisedEvaluator(evaluation(tmp_path)).run()
    assert "no checkpoint is given" in capsys.readouterr().out


def test_plain_weights_of_another_tool(tmp_path: Path) -> None:
    model = Net()
    for k, saved in enumerate((model.state_dict(), {"state_dict": model.state_dict()}, {"model": model.state_dict()})):
        torch.save(saved, tmp_path / f"{k}.pt")
        evaluator = SupervisedEvaluator(evaluation(tmp_path / str(k), checkpoint=str(tmp_path / f"{k}.pt")))
        assert all(torch.equal(a, b) for a, b in zip(evaluator.network.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"checkpoint": "nowhere.pt"}, CheckpointError, "there is no checkpoint 'nowhere.pt'"),
        ({"checkpoint": "."}, ConfigError, "holds no checkpoint.pt"),
        ({"model": node(torch.nn.Linear, in_features=6, out_features=3)}, CheckpointError, "does not fit the model"),
    ],
)
def test_weights_that_are_not_there(
    changed: dict[str, Any], error: type, message: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(error, match=message):
        SupervisedEvaluator(evaluation(tmp_path / "run", **{"checkpoint": str(trained), **changed}))


def test_nothing_is_replaced_unasked(trained: Path, tmp_path: Path) -> None:
    SupervisedEvaluator(evaluation(tmp_path)).run()
    with pytest.raises(ConfigError, match="overwrite=True"):
        SupervisedEvaluator(evaluation(tmp_path))
    SupervisedEvaluator(evaluation(tmp_path, overwrite=True)).run()
    with pytest.raises(ConfigError, match="holds a training run"):
        SupervisedEvaluator(evaluation(trained, overwrite=True))


def test_a_checkpoint_that_is_not_there_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, message in (("absent.pt", "there is no checkpoint '.*absent.pt'"), ("empty", "'.*empty' holds no check")):
        with pytest.raises((ConfigError, CheckpointError), match=f"^checkpoint: {message}"):
            SupervisedEvaluator(evaluation(tmp_path / "eval", checkpoint=str(tmp_path / path)))


def test_overwriting_leaves_nothing_of_the_evaluation_before(tmp_path: Path) -> None:
    SupervisedEvaluator(evaluation(tmp_path)).run()
    (tmp_path / "outputs" / "mine.txt").write_text("a user's own")
    SupervisedEvaluator(evaluation(tmp_path, overwrite=True, debugger=None, save_datapoints=None)).run()
    assert {p.name for p in tmp_path.iterdir()} == {"run.json", "config.json", "evaluation_scores.json", "outputs"}
    assert [p.name for p in (tmp_path / "outputs").iterdir()] == ["mine.txt"]
