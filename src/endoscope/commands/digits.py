"""The demo's data, model and configs, as a user would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from endoscope.debuggers import ActivationStatsDebugger, FeatureMapDebugger, GradCAMDebugger, SequentialDebugger
from endoscope.errors import ConfigError
from endoscope.runners.metrics.classification import ClassificationMetric

CHECKPOINT_EVERY = 2


class DigitNet(nn.Sequential):
    """Two convolutions, global average pooling and a linear layer, for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.relu2 = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(32, 10)


class Digits(Dataset[dict[str, Any]]):
    """scikit-learn's 1,797 digits, three fifths for training; ``idx`` is the position in scikit-learn's dataset."""

    class_names = tuple("0123456789")

    def __init__(self, split: Literal["train", "val", "eval"]) -> None:
        try:
            from sklearn import datasets  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigError(
                "the demo needs scikit-learn, which is not installed; install it with: pip install 'endoscope[demo]'"
            ) from None
        digits = datasets.load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(digits.target)
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0)).tolist()
        fifth = len(order) // 5
        self._positions = {"eval": order[:fifth], "val": order[fifth : 2 * fifth], "train": order[2 * fifth :]}[split]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, k: int) -> dict[str, Any]:
        idx = self._positions[k]
        return {"inputs": self.images[idx], "labels": self.labels[idx], "meta_info": {"idx": idx}}


DEBUGGERS = [
    {"name": "feature_maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "conv2"}}},
    {"name": "activations", "debugger_config": {"class": ActivationStatsDebugger, "args": {"layer_name": "relu*"}}},
    {"name": "gradcam", "debugger_config": {"class": GradCAMDebugger, "args": {"target_layer": "relu2"}}},
]
DEBUGGER = {"class": SequentialDebugger, "args": {"page_size_mb": 8, "debuggers_config": DEBUGGERS}}


def training_config(work_dir: Path, *, epochs: int) -> dict[str, Any]:
    """Train, validate after every epoch, capture at every second epoch and the last."""
    return {
        "work_dir": str(work_dir),
        "epochs": epochs,
        "model": {"class": DigitNet, "args": {}},
        "train_dataset": {"class": Digits, "args": {"split": "train"}},
        "val_dataset": {"class": Digits, "args": {"split": "val"}},
        "train_dataloader": {"class": DataLoader, "args": {"batch_size": 32, "shuffle": True}},
        "criterion": {"class": nn.CrossEntropyLoss, "args": {}},
        "metric": {"class": ClassificationMetric, "args": {}},
        "optimizer": {"class": torch.optim.Adam, "args": {"lr": 3e-3}},
        "checkpoint_method": CHECKPOINT_EVERY,
        "debugger": DEBUGGER,
        "device": "cpu",
        "torch_threads": 1,  # for images this small, several threads are slower
    }


def evaluation_config(work_dir: Path, checkpoint: Path) -> dict[str, Any]:
    """Evaluate the last checkpoint of a run on digits that it has not seen."""
    return {
        "work_dir": str(work_dir),
        "checkpoint": str(checkpoint),
        "model": {"class": DigitNet, "args": {}},
        "eval_dataset": {"class": Digits, "args": {"split": "eval"}},
        "metric": {"class": ClassificationMetric, "args": {}},
        "debugger": DEBUGGER,
        "device": "cpu",
        "torch_threads": 1,  # for images this small, several threads are slower
    }
