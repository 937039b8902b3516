"""Write the runs of a folder here with the version that is installed: python -m tests.earlier_versions.write 0.1.0

Done once for each version whose files differ; what is there is never written again.
"""

from __future__ import annotations

import enum
import json
import sys
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.earlier_versions.facts import facts_of
from torch import nn
from torch.utils.data import DataLoader, Dataset

from endoscope import BaseDebugger, SequentialDebugger, per_datapoint, whole_batch
from endoscope.commands.digits import Digits
from endoscope.debuggers import (
    ActivationStatsDebugger,
    AttentionDebugger,
    FeatureMapDebugger,
    GradCAMDebugger,
    GradientStatsDebugger,
    LayerOutputDebugger,
)
from endoscope.runners import ClassificationMetric, SupervisedEvaluator, SupervisedTrainer

HERE = Path(__file__).parent


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu()
        tokens = x.flatten(2).transpose(1, 2)[:, ::8]
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=True, average_attn_weights=False)
        return self.head(x.mean((2, 3)) + attended.mean(1))


class Few(Dataset[dict[str, Any]]):
    """The first digits of a split, numbered from 0."""

    class_names = Digits.class_names

    def __init__(self, split: str, count: int) -> None:
        self.digits, self.count = Digits(split), count  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> dict[str, Any]:
        meta = {"idx": k, "place": self.digits[k]["meta_info"]["idx"], "camera": "AB"[k % 2]}
        return {**self.digits[k], "meta_info": meta}


Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Box:
    corner: Point
    size: torch.Tensor


class Odd(BaseDebugger):
    """Values of every kind."""

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        outputs = datapoint["outputs"]
        count = len(outputs)
        return {
            "margin": outputs.topk(2).values.diff().abs(),
            "each": per_datapoint([{"k": k, "text": f"datapoint {k}"} for k in range(count)]),
            "whole": whole_batch(torch.arange(6.0).reshape(2, 3)),
            "non_finite": torch.tensor([[1.0, float("nan"), float("inf"), -float("inf")]] * count),
            "large_mean": torch.linspace(999.9, 1000.1, 64).repeat(count, 1),
            "half": outputs.to(torch.bfloat16),
            "complex": torch.complex(outputs, -outputs),
            "flags": outputs > 0,
            "integers": torch.arange(count * 300).reshape(count, 300) * 10**9,
            "empty": torch.zeros(count, 0),
            "array": np.linspace(0, 1, 5, dtype=np.float16),
            "box": Box(Point(1, 2.5), torch.ones(3)),
            "colour": Colour.RED,
            "sparse": torch.eye(3).to_sparse(),
            "object": object,
            "nothing": None,
        }


def node(cls: Any, **args: Any) -> dict[str, Any]:
    return {"class": cls, "args": args}


def debuggers() -> list[dict[str, Any]]:
    configs = {
        "maps": node(FeatureMapDebugger, layer_name="conv"),
        "statistics": node(ActivationStatsDebugger, layer_name="norm"),
        "attention": node(AttentionDebugger, layer_name="attention"),
        "output": node(LayerOutputDebugger, layer_name="head"),
        "gradcam": node(GradCAMDebugger, target_layer="conv"),
        "odd": node(Odd),
    }
    return [{"name": name, "debugger_config": config} for name, config in configs.items()]


def write(folder: Path) -> None:
    debugger = node(SequentialDebugger, debuggers_config=debuggers())
    common = {
        "model": node(Net),
        "metric": node(ClassificationMetric),
        "debugger": debugger,
        "device": "cpu",
        "torch_threads": 1,
    }
    train = {
        **common,
        "work_dir": str(folder / "train"),
        "epochs": 2,
        "train_dataset": node(Few, split="train", count=64),
        "val_dataset": node(Few, split="val", count=12),
        "train_dataloader": node(DataLoader, batch_size=8, shuffle=True),
        "val_dataloader": node(DataLoader, batch_size=4),
        "criterion": node(nn.CrossEntropyLoss),
        "optimizer": node(torch.optim.Adam, lr=1e-2),
        "checkpoint_method": "all",
    }
    SupervisedTrainer(train).run()
    evaluation = {
        **common,
        "work_dir": str(folder / "evaluation"),
        "checkpoint": str(folder / "train"),
        "eval_dataset": node(Few, split="eval", count=6),
        "eval_dataloader": node(DataLoader, batch_size=1),
    }
    SupervisedEvaluator(evaluation).run()
    own_loop(folder / "own_loop")


def own_loop(folder: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    few = Few("val", 8)
    configs = {
        "gradients": node(GradientStatsDebugger, layer_name="conv"),
        "maps": node(FeatureMapDebugger, layer_name="norm"),
    }
    config = [{"name": name, "debugger_config": one} for name, one in configs.items()]
    with SequentialDebugger(config, model, output_dir=folder / "epoch_0" / "debugger") as debugger:
        debugger.enabled = True
        for batch in DataLoader(few, batch_size=4):
            outputs = model(batch["inputs"])
            nn.functional.cross_entropy(outputs, batch["labels"]).backward()
            debugger({**batch, "outputs": outputs}, model)


def _forget_machine(folder: Path) -> None:
    """Take the names of this machine's folders and processes out of what is committed."""
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(str(HERE.parents[1]) + "/", ""))
    for path in folder.glob("*/run.json"):
        about = json.loads(path.read_text())
        path.write_text(json.dumps({**about, "host": "machine", "process": "unknown", "pid": 1}, indent=1))


if __name__ == "__main__":
    target = HERE / sys.argv[1]
    if target.exists():
        sys.exit(f"{target} is there already")
    write(target / "runs")
    _forget_machine(target / "runs")
    (target / "facts.json").write_text(json.dumps(facts_of(target / "runs"), sort_keys=True) + "\n")
