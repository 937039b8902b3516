"""Wrong data, models, metrics and faulty disks: early errors that name the cause."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runners.training import VAL, Blobs, Net, config, evaluation, final, node
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from endoscope import load_debug_outputs
from endoscope.debuggers import FeatureMapDebugger, SequentialDebugger
from endoscope.errors import ConfigError, DatapointError
from endoscope.pages.verify import verify_folder
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.state.checkpoints import CheckpointError
from endoscope.runs import atomic
from endoscope.runs.scores import Direction, read_scores


class Other(Blobs):
    """Blobs, given otherwise."""

    def __init__(self, count: int, give: Callable[[int, Tensor, int], Any]) -> None:
        super().__init__(count)
        self.give = give

    def __getitem__(self, k: int) -> Any:
        return self.give(k, *super().__getitem__(k))


def given(give: Callable[[int, Tensor, int], Any]) -> dict[str, Any]:
    return node(Other, count=VAL, give=give)


def run(work_dir: Path, **changed: Any) -> None:
    SupervisedTrainer(config(work_dir, **{"epochs": 1, "debugger": None, **changed})).run()


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


# ---------------------------------------------------------------- data
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"train_dataset": given(lambda k, x, y: (x, 5))}, IndexError, "Target 5 is out of bounds"),
        ({"val_dataset": given(lambda k, x, y: (x, 5))}, MetricError, "labels hold class 5; expected 0 to 2"),
        ({"train_dataset": given(lambda k, x, y: (x[: 3 + k % 3], y))}, DatapointError, "do not make a batch"),
        ({"val_dataset": given(lambda k, x, y: x)}, MetricError, "labels is NoneType"),
        ({"val_dataset": given(lambda k, x, y: {"inputs": x, "meta_info": "a"})}, DatapointError, "expected a dict"),
        ({"val_dataset": []}, ConfigError, "^val_dataset: it has no items"),
        ({"train_dataset": iter([])}, ConfigError, "^train_dataset: the dataset is a list_iterator, which can be read"),
        (
            {"val_dataset": given(lambda k, x, y: None if k == 13 else (x, y))},
            DatapointError,
            "^val_dataset, item 13: an item of the dataset is None, not a dict",
        ),
        (
            {"train_dataset": given(lambda k, x, y: None if k == 13 else (x, y))},
            DatapointError,
            "^train_dataset, item 13: an item of the dataset is None",
        ),
        ({"val_dataset": Nothing()}, ConfigError, "^val_dataset: no datapoint was scored"),
        ({"train_dataset": Nothing(), "train_dataloader": None}, ConfigError, "^train_dataset: it gave no batch"),
        ({"train_dataset": node(Blobs, count=17)}, ValueError, "Expected more than 1 value per channel"),
    ],
)
def test_wrong_data(changed: dict[str, Any], error: type, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path, **changed)
    if (tmp_path / "run.json").exists():
        assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"
    assert not list(tmp_path.rglob("checkpoint.pt"))


def test_an_evaluation_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^eval_dataset: no datapoint was scored"):
        SupervisedEvaluator(evaluation(tmp_path, eval_dataset=Nothing())).run()


@pytest.mark.parametrize("number", [lambda k: -k, lambda k: 2**40 + 1000 * k, lambda k: (k * 7) % VAL])
def test_any_numbers_that_are_unique(number: Callable[[int], int], tmp_path: Path) -> None:
    run(tmp_path, val_dataset=given(lambda k, x, y: (x, y, {"idx": number(k)})))
    expected = sorted(number(k) for k in range(VAL))
    assert list(read_scores(tmp_path / "epoch_0" / "validation_scores.json").per_datapoint) == expected
    kept = load_debug_outputs(tmp_path / "datapoints")
    assert sorted(kept) == expected
    assert torch.equal(kept[number(5)]["inputs"][0], Blobs(VAL).points[5])


def test_repeated_indices_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="^val_dataset: 11 of 23 datapoints have the meta_info.idx of another one"):
        run(tmp_path, val_dataset=given(lambda k, x, y: (x, y, {"idx": k // 2})))


def test_an_error_in_a_worker_keeps_its_kind(tmp_path: Path) -> None:
    loader = node(DataLoader, batch_size=8, num_workers=1)
    with pytest.raises(DatapointError, match="meta_info is 'a'; expected a dict"):
        run(
            tmp_path,
            val_dataset=given(lambda k, x, y: {"inputs": x, "labels": y, "meta_info": "a"}),
            val_dataloader=loader,
        )


# ---------------------------------------------------------------- models and the rest of the config
class Fixed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


def plain(**_: Any) -> dict[str, int]:
    return {}


NO_LAYER = node(FeatureMapDebugger, layer_name="absent")


def a_debugger(model: Any) -> object:
    return object()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": node(Fixed)}, "model: none of its parameters requires a gradient"),
        ({"model": node(nn.Flatten)}, "model: none of its parameters requires a gradient"),
        ({"metric": lambda datapoint: {}}, "metric: found a function; expected"),
        ({"metric": node(plain)}, "metric: found a dict; expected"),
        ({"optimizer": node(plain)}, "optimizer: found a dict; expected"),
        (
            {"debugger": node(SequentialDebugger, debuggers_config=[{"name": "maps", "debugger_config": NO_LAYER}])},
            r"^debugger\.args\.debuggers_config\[0\] \('maps'\): no layer",
        ),
        ({"device": "meta"}, "^device: torch cannot use 'meta' here"),
        ({"debugger": node(a_debugger)}, "debugger: found an object; expected a SequentialDebugger"),
    ],
)
def test_parts_that_cannot_do_their_work_are_refused_at_once(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        SupervisedTrainer(config(tmp_path, **changed))
    assert not (tmp_path / "run.json").exists()


class Wrapped(nn.Module):
    """A linear model whose outputs stand in something, and whose inputs come in something."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(6, 3), wrap

    def forward(self, a: Tensor, b: Tensor | None = None) -> Any:
        return self.wrap(self.linear(a if b is None else a + b))


class Taking(nn.Module):
    def __init__(self, take: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.take = take

    def forward(self, outputs: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.take(outputs), labels)


class Right(BaseMetric):
    DIRECTIONS: Mapping[str, Direction] = {"right": "higher"}

    def __init__(self, take: Callable[[Any], Tensor]) -> None:
        self.take = take

    def __call__(self, datapoint: Any) -> dict[str, Tensor]:
        return {"right": (self.take(datapoint["outputs"]).argmax(1) == datapoint["labels"]).float()}


@pytest.mark.parametrize("inputs", [lambda x: x, lambda x: {"a": x, "b": x}, lambda x: (x, x)])
@pytest.mark.parametrize(
    ("wrap", "take"),
    [(lambda z: {"logits": z}, lambda o: o["logits"]), (lambda z: (z, 2 * z), lambda o: o[0])],
)
def test_inputs_and_outputs_of_other_shapes(inputs: Any, wrap: Any, take: Any, tmp_path: Path) -> None:
    data = given(lambda k, x, y: (inputs(x), y))
    parts = {"model": node(Wrapped, wrap=wrap), "criterion": node(Taking, take=take), "metric": node(Right, take=take)}
    run(tmp_path, train_dataset=data, val_dataset=data, save_datapoints=10, **parts)
    outputs = load_debug_outputs(tmp_path / "epoch_0" / "outputs")
    assert sorted(outputs) == list(range(10))
    assert all(take(outputs[k]["outputs"]).shape == (1, 3) for k in outputs)
    assert len(read_scores(tmp_path / "epoch_0" / "validation_scores.json").per_datapoint) == VAL


# ---------------------------------------------------------------- a full disk
class Disk:
    """The os that atomic writes see; it can be full."""

    full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(atomic, "os", disk)
    return disk


def fill(trainer: SupervisedTrainer, method: str, disk: Disk, error: Exception | None = None) -> None:
    real = getattr(trainer, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if trainer.epoch == 1:
            disk.full = True
            if error is not None:
                raise error
        return real(*args, **kwargs)

    setattr(trainer, method, wrapped)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("_train_epoch_", OSError, "No space left on device: '.*validation_scores.json'"),
        ("_after_epoch", OSError, "No space left on device: '.*progress.json'"),
        ("_save_checkpoint", CheckpointError, "checkpoint.pt' cannot be written: No space left on device"),
    ],
)
def test_a_full_disk_is_named_and_the_run_resumed(
    method: str, error: type, message: str, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = SupervisedTrainer(config(tmp_path / "full"))
    fill(trainer, method, disk)
    with pytest.raises(error, match=message), caplog.at_level(logging.WARNING, "endoscope"):
        trainer.run()
    assert "run.json still records the run as running" in caplog.text
    assert not list(tmp_path.rglob(".*"))
    disk.full = False
    SupervisedTrainer(config(tmp_path / "full")).run()
    SupervisedTrainer(config(tmp_path / "whole")).run()
    assert final(tmp_path / "full") == final(tmp_path / "whole")


def test_the_users_own_error_is_not_hidden_by_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path))
    fill(trainer, "_train_step", disk, ZeroDivisionError("the user's own"))
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        trainer.run()


def test_pages_that_cannot_be_written_do_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "endoscope"):
        patch.setattr("endoscope.pages.page.os.writev", full)
        SupervisedTrainer(config(tmp_path / "full")).run()
    assert "No space left on device" in caplog.text
    SupervisedTrainer(config(tmp_path / "whole")).run()
    assert final(tmp_path / "full") == final(tmp_path / "whole")
    for folder in (tmp_path / "full").glob("epoch_*/debugger"):
        assert len(load_debug_outputs(folder)) == 0
        verify_folder(folder)


def test_the_debugger_is_the_one_of_the_config(tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path))
    assert isinstance(trainer.debugger, SequentialDebugger)
    assert not trainer.debugger.enabled


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scheduler": node(lambda optimizer: 3)}, "^scheduler: found an int; expected a scheduler like"),
        (
            {"train_dataloader": node(DataLoader, collate_fn=3)},
            "^train_dataloader.args.collate_fn: found 3; expected a",
        ),
        ({"device": "xpu"}, "^device: torch cannot use 'xpu' here: "),
        (
            {"work_dir": "~nobody_of_that_name/x"},
            "^work_dir: found '~nobody_of_that_name/x'; expected a path; Could not",
        ),
    ],
)
def test_errors_before_training(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SupervisedTrainer({**config(tmp_path), **changed})
