"""A small run with dropout, BatchNorm, a scheduler and debuggers. Used in subprocesses, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from endoscope.debuggers import ActivationStatsDebugger, FeatureMapDebugger, SequentialDebugger
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.state.checkpoints import load_checkpoint

TRAIN, VAL = 44, 23


class Blobs(Dataset[tuple[Tensor, int]]):
    """Points around three centres, with their class; the noise is drawn at every access, like augmentation."""

    classes = ("red", "green", "blue")

    def __init__(self, count: int, *, seed: int = 0, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=generator)
        self.points = torch.randn(count, 6, generator=generator) + self.labels[:, None]
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return self.points[k] + self.noise * torch.randn(6), int(self.labels[k])


class Net(nn.Sequential):
    def __init__(self, *, dropout: float = 0.3) -> None:
        super().__init__()
        self.a = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(dropout)
        self.b = nn.Linear(16, 3)


def node(cls: Any, **args: Any) -> dict[str, Any]:
    return {"class": cls, "args": args}


DEBUGGER = node(
    SequentialDebugger,
    debuggers_config=[
        {"name": "maps", "debugger_config": node(FeatureMapDebugger, layer_name="a")},
        {"name": "activations", "debugger_config": node(ActivationStatsDebugger, layer_name="act")},
    ],
)


def config(work_dir: Path, **changed: Any) -> dict[str, Any]:
    return {
        "work_dir": str(work_dir),
        "epochs": 3,
        "seed": 7,
        "train_dataset": node(Blobs, count=TRAIN, noise=0.1),
        "val_dataset": node(Blobs, count=VAL, seed=1),
        "train_dataloader": node(torch.utils.data.DataLoader, batch_size=8, shuffle=True),
        "val_dataloader": node(torch.utils.data.DataLoader, batch_size=8),
        "model": node(Net),
        "criterion": node(nn.CrossEntropyLoss),
        "metric": node(ClassificationMetric),
        "optimizer": node(torch.optim.Adam, lr=0.01),
        "scheduler": node(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9),
        "checkpoint_method": 2,
        "debugger": DEBUGGER,
        "device": "cpu",
        **changed,
    }


def evaluation(work_dir: Path, **changed: Any) -> dict[str, Any]:
    return {
        "work_dir": str(work_dir),
        "eval_dataset": node(Blobs, count=VAL, seed=1),
        "eval_dataloader": node(torch.utils.data.DataLoader, batch_size=8),
        "model": node(Net),
        "metric": node(ClassificationMetric),
        "debugger": DEBUGGER,
        "device": "cpu",
        **changed,
    }


def final(work_dir: Path, epoch: int = 2) -> dict[str, Any]:
    """The final state of a run, bit for bit: weights, optimizer, scheduler."""
    state = load_checkpoint(work_dir / f"epoch_{epoch}" / "checkpoint.pt")
    return {key: canonical(state[key]) for key in ("model", "optimizer", "scheduler", "step", "epoch")}


def canonical(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, dict):
        return {k: canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, (list, tuple)) else value
