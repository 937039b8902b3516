"""Resuming with everything that has a state: optimizers, schedulers, scalers, buffers, criteria, workers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runners.training import TRAIN, Blobs, Net, canonical, config, node
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, Sampler

from endoscope.errors import ConfigError
from endoscope.runners.config.plain import as_json
from endoscope.runners.loops.supervised import SupervisedTrainer
from endoscope.runners.state import checkpoints
from endoscope.runners.state.checkpoints import load_checkpoint

STEPS = 18


class Killed(BaseException):
    pass


def sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, T_max=14)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def tensor_rate(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=torch.tensor(0.01))


class Warmup:
    def __init__(self) -> None:
        self.steps = 3

    def __call__(self, step: int) -> float:
        return 1 / (step + self.steps)


class Weighted(nn.Module):
    """A criterion with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.seen += 1
        return nn.functional.cross_entropy(outputs, labels) / self.seen


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear((x - self.mean) * self.mask)


class Hidden(nn.Module):
    """Its buffers are not in its state_dict, and change; one begins as a view, one is not there at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.inner.register_buffer("mean", torch.zeros(6), persistent=False)
        self.register_buffer("wide", torch.zeros(1).expand(6), persistent=False)
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.inner.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.wide = self.wide + 0.1
            self.seen = torch.ones(()) if self.seen is None else self.seen + 1
        return self.inner(x - self.inner.mean + self.wide) / (1 if self.seen is None else self.seen)


class HiddenWeight(Weighted):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("seen", torch.zeros(()), persistent=False)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.requires_grad_(False)


class Chance(nn.Module):
    """Draws from every generator, also in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1 + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(()))


class OwnGenerator(Sampler[int]):
    """Its order is drawn from a generator of its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count, generator=self.generator).tolist())

    def __len__(self) -> int:
        return self.count


class ByEpoch(OwnGenerator):
    """Its order depends on the epoch that it is told, as that of DistributedSampler does."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(k + 5 * self.epoch) % self.count for k in range(self.count)])


def persistent(**more: Any) -> dict[str, Any]:
    return node(DataLoader, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, **more)


VARIANTS: dict[str, dict[str, Any]] = {
    "workers": {"train_dataloader": node(DataLoader, batch_size=8, shuffle=True, num_workers=2)},
    "persistent workers": {"train_dataloader": persistent(), "train_dataset": node(Blobs, count=TRAIN)},
    "a sampler with a generator": {
        "train_dataloader": node(DataLoader, batch_size=8, sampler=node(OwnGenerator, count=TRAIN))
    },
    "a batch sampler of it": {
        "train_dataloader": node(
            DataLoader,
            batch_sampler=node(BatchSampler, sampler=node(OwnGenerator, count=TRAIN), batch_size=8, drop_last=False),
        )
    },
    "a sampler that is told the epoch": {
        "train_dataloader": node(DataLoader, batch_size=8, sampler=node(ByEpoch, count=TRAIN))
    },
    "accumulation": {"accumulate": 4, "clip_norm": 0.5},
    "OneCycleLR": {"scheduler": node(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=STEPS)},
    "SequentialLR": {"scheduler": node(sequential)},
    "MultiStepLR": {"scheduler": node(lr_scheduler.MultiStepLR, milestones=[3, 9])},
    "LambdaLR": {"scheduler": node(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (step + 1))},
    "LambdaLR of an object": {"scheduler": node(lr_scheduler.LambdaLR, lr_lambda=Warmup())},
    "warm restarts": {"scheduler": node(lr_scheduler.CosineAnnealingWarmRestarts, T_0=5)},
    "plateau": {"scheduler": node(lr_scheduler.ReduceLROnPlateau, patience=0, threshold=100.0)},
    "momentum": {"optimizer": node(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)},
    "AdamW": {"optimizer": node(torch.optim.AdamW, lr=0.1, amsgrad=True)},
    "a rate that is a tensor": {"optimizer": node(tensor_rate), "scheduler": None},
    "GradScaler": {"precision": "float16"},
    "a criterion with a state": {"criterion": node(Weighted)},
    "lazy modules": {"model": node(Lazy)},
    "buffers": {"model": node(Buffers)},
    "buffers that are not persistent": {"model": node(Hidden), "criterion": node(HiddenWeight)},
    "frozen layers": {"model": node(Frozen)},
    "a model that draws": {"model": node(Chance)},
}


def changed(name: str) -> dict[str, Any]:
    per_step = "LR" in name or name == "warm restarts"
    return {"debugger": None, "scheduler_step": "step" if per_step else "epoch", **VARIANTS[name]}


def ended(work_dir: Path) -> Any:
    return canonical(load_checkpoint(work_dir / "epoch_2" / "checkpoint.pt"))


def killed_when(trainer: SupervisedTrainer, method: str, due: Callable[[], bool]) -> None:
    """Run, and end without a word in the middle of a method, when that is due."""
    real = getattr(trainer, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if due():
            raise Killed
        return real(*args, **kwargs)

    setattr(trainer, method, wrapped)
    with pytest.raises(Killed):
        trainer.run()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_bits(name: str, tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "whole", **changed(name))).run()
    trainer = SupervisedTrainer(config(tmp_path / "killed", **changed(name)))
    killed_when(trainer, "_eval_step", lambda: trainer.epoch == 1)
    again = SupervisedTrainer(config(tmp_path / "killed", **changed(name)))
    assert again.epoch == 1
    again.run()
    assert ended(tmp_path / "killed") == ended(tmp_path / "whole")


class Averaging(SupervisedTrainer):
    """Keeps an average of the weights, and has a second optimizer; made when the rest is built."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.average = torch.optim.swa_utils.AveragedModel(self.network)
        self.second = torch.optim.Adam(self.network.parameters(), lr=0.003)

    def _optimize(self) -> None:
        self.second.step()
        super()._optimize()
        self.average.update_parameters(self.network)

    def _extra_state(self) -> dict[str, Any]:
        return {"average": self.average.state_dict(), "second": self.second.state_dict()}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        self.average.load_state_dict(state["average"])
        self.second.load_state_dict(state["second"])


class Forgetful(Averaging):
    def _load_extra_state(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("resumed", [Averaging, Forgetful])
def test_own_state(resumed: type[Averaging], tmp_path: Path) -> None:
    changed = {"debugger": None, "runner": Averaging}
    Averaging(config(tmp_path / "whole", **changed)).run()
    trainer = Averaging(config(tmp_path / "killed", **changed))
    killed_when(trainer, "_eval_step", lambda: trainer.epoch == 1)
    resumed(config(tmp_path / "killed", **changed)).run()
    same = ended(tmp_path / "killed") == ended(tmp_path / "whole")
    assert same is (resumed is Averaging)  # the twin: it is what makes them the same


def test_a_state_that_could_not_be_loaded_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Wrong(SupervisedTrainer):
        def _extra_state(self) -> dict[str, Any]:
            return {"path": Path("x")}

    with pytest.raises(ConfigError, match="^_extra_state: its state_dict"):
        Wrong(config(tmp_path)).run()
    assert not (tmp_path / "epoch_0").exists()


def test_killed_in_the_very_first_validation(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "whole")).run()
    killed_when(SupervisedTrainer(config(tmp_path / "killed")), "_eval_step", lambda: True)
    again = SupervisedTrainer(config(tmp_path / "killed"))
    assert again.epoch == 0
    again.run()
    assert ended(tmp_path / "killed") == ended(tmp_path / "whole")


@pytest.mark.parametrize("epoch", [1, 2])
def test_killed_while_the_checkpoint_before_is_removed(epoch: int, tmp_path: Path) -> None:
    """In the last epoch nothing is left to compute, but the folder is put in order."""
    changed = {"checkpoint_method": "latest", "debugger": None}
    SupervisedTrainer(config(tmp_path / "whole", **changed)).run()
    trainer = SupervisedTrainer(config(tmp_path / "killed", **changed))
    killed_when(trainer, "_remove_checkpoints", lambda: trainer.epoch == epoch)
    trainer.folder.begin({}, as_json(trainer.config))  # a killed process does not say that it was
    left = {p.parent.name for p in (tmp_path / "killed").glob("*/checkpoint.pt")}
    assert left == {f"epoch_{epoch - 1}", f"epoch_{epoch}"}
    SupervisedTrainer(config(tmp_path / "killed", **changed)).run()
    assert ended(tmp_path / "killed") == ended(tmp_path / "whole")
    assert [p.parent.name for p in (tmp_path / "killed").glob("*/checkpoint.pt")] == ["epoch_2"]
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["status"] == "finished"


class NeedsClosure(torch.optim.LBFGS):
    pass


def test_an_optimizer_that_needs_a_closure_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^optimizer: NeedsClosure computes the loss several times in a step"):
        SupervisedTrainer(config(tmp_path, optimizer=node(NeedsClosure), scheduler=None))


class OwnStep(SupervisedTrainer):
    def _optimize(self) -> None:
        self.optimizer.step(lambda: 0.0)
        self.optimizer.zero_grad(set_to_none=True)


def test_a_trainer_that_gives_one_may_have_it(tmp_path: Path) -> None:
    keys = {"optimizer": node(NeedsClosure), "scheduler": None, "debugger": None, "epochs": 1}
    OwnStep(config(tmp_path, **keys)).run()
    assert checkpoints.latest_checkpoint(tmp_path) is not None


class Extra(Net):
    def get_extra_state(self) -> Any:
        return {"path": Path("a")}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_a_model_that_could_not_be_resumed_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model: its state_dict\(\) holds more than .*pathlib"):
        SupervisedTrainer(config(tmp_path, model=node(Extra)))
