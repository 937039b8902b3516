"""BaseEvaluator: scores and captures of every datapoint, with the weights of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runners.training import DEBUGGER, VAL, Blobs, Net, config, evaluation, node
from torch import Tensor, nn

from endoscope import SequentialDebugger, load_debug_outputs
from endoscope.errors import ConfigError
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state.checkpoints import CheckpointError
from endoscope.runs.scores import read_scores


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


def test_an_epoch_of_a_training_run_is_no_place_for_an_evaluation(trained: Path) -> None:
    epoch = max(trained.glob("epoch_*"))
    before = {p.name for p in epoch.iterdir()}
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="^work_dir: '.*epoch_.' is an epoch of a training run; choose another"):
            SupervisedEvaluator(evaluation(epoch, checkpoint=str(epoch), overwrite=overwrite))
    assert {p.name for p in epoch.iterdir()} == before > {"debugger", "outputs", "training_losses.json"}


def test_foreign_captures_are_replaced_only_with_overwrite(tmp_path: Path) -> None:
    with SequentialDebugger(DEBUGGER["args"]["debuggers_config"], Net(), output_dir=tmp_path / "debugger") as debugger:
        debugger.add_to_buffer({"maps": torch.ones(3)}, {"meta_info": {"idx": 500}})
    with pytest.raises(ConfigError, match="was not made by a run, and this run would replace it; choose another"):
        SupervisedEvaluator(evaluation(tmp_path))
    assert list(load_debug_outputs(tmp_path)) == [500]
    SupervisedEvaluator(evaluation(tmp_path, overwrite=True)).run()
    assert sorted(load_debug_outputs(tmp_path)) == list(range(VAL))


class Remembers(nn.Module):
    """Its running mean is no part of its state_dict, and decides what it computes in evaluation; another begins as
    None."""

    seen: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen, self.last = 0.5 * self.seen + 0.5 * x.mean(0), x.mean(0)
        outputs: Tensor = self.linear(x - self.seen + (0 if self.last is None else self.last))
        return outputs


def test_buffers_that_are_no_part_of_the_weights_are_evaluated_with_them(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "run", model=node(Remembers), debugger=None)).run()
    changed = {"model": node(Remembers), "debugger": None, "checkpoint": str(tmp_path / "run")}
    scores = SupervisedEvaluator(evaluation(tmp_path / "eval", **changed)).run()
    assert scores is not None
    assert scores.aggregated == read_scores(tmp_path / "run" / "epoch_2" / "validation_scores.json").aggregated


class Grid(nn.Module):
    """A table that is made for a size, and no part of its state_dict."""

    grid: Tensor

    def __init__(self, size: int, *, helped: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("grid", torch.arange(float(size)), persistent=False)
        if helped:
            self.helper = nn.Identity()
            self.helper.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert len(self.grid) in (6, 12)
        outputs: Tensor = self.linear(x)
        return outputs


@pytest.mark.parametrize("changed", [{"size": 12}, {"size": 6, "helped": False}])
def test_a_model_built_for_another_size_keeps_its_own_buffers(changed: dict[str, Any], tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "run", model=node(Grid, size=6), debugger=None)).run()
    given = {"model": node(Grid, **changed), "debugger": None, "checkpoint": str(tmp_path / "run")}
    evaluator = SupervisedEvaluator(evaluation(tmp_path / "eval", **given))
    evaluator.run()
    assert evaluator.network.get_buffer("grid").tolist() == list(range(changed["size"]))


def test_the_work_folder_itself_may_be_a_link_and_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    SupervisedEvaluator(evaluation(tmp_path / "run")).run()
    SupervisedEvaluator(evaluation(tmp_path / "run", overwrite=True, debugger=None)).run()
    assert {p.name for p in (tmp_path / "disk").iterdir()} >= {"evaluation_scores.json", "outputs"}
    assert not (tmp_path / "disk" / "debugger").exists()
    (tmp_path / "disk" / "debugger").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="debugger' is a link; choose another folder"):
        SupervisedEvaluator(evaluation(tmp_path / "run", overwrite=True))


def test_a_checkpoint_alone_makes_no_epoch_of_a_run(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes((trained / "epoch_2" / "checkpoint.pt").read_bytes())
    SupervisedEvaluator(evaluation(tmp_path, checkpoint=str(tmp_path))).run()
    assert (tmp_path / "evaluation_scores.json").exists() and (tmp_path / "checkpoint.pt").exists()


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
