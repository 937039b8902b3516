"""The demo's run, as a user would write it: a small CNN learns scikit-learn's digits and is looked into meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from endoscope.debuggers import ActivationStatsDebugger, FeatureMapDebugger, GradCAMDebugger, SequentialDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SaveReport
from endoscope.errors import ConfigError

SEED = 0
CHECKPOINT_EVERY = 2
"""Epochs from one checkpoint, and capture, to the next; the last epoch always is one."""

DEBUGGERS = [
    {"name": "feature_maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "conv2"}}},
    {"name": "activations", "debugger_config": {"class": ActivationStatsDebugger, "args": {"layer_name": "relu*"}}},
    {"name": "gradcam", "debugger_config": {"class": GradCAMDebugger, "args": {"target_layer": "relu2"}}},
]


class DigitNet(nn.Sequential):
    """Two convolutions, the average over all positions, and a linear layer, for images of 8 x 8."""

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


@dataclass(frozen=True)
class Verdict:
    """What the model says of one validation datapoint; ``idx`` is its place in scikit-learn's dataset."""

    idx: int
    label: int
    prediction: int
    confidence: float
    loss: float


@dataclass(frozen=True)
class Epoch:
    """One epoch: the mean training loss, the verdicts in validation, and what was saved if it is a checkpoint."""

    number: int
    loss: float
    verdicts: list[Verdict]
    saved: SaveReport | None

    @property
    def accuracy(self) -> float:
        return sum(v.prediction == v.label for v in self.verdicts) / len(self.verdicts)


def load_digits() -> TensorDataset:
    """All 1797 digits as (image, label, idx); images are (1, 8, 8) from 0 to 1."""
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("the demo needs scikit-learn: pip install 'endoscope[demo]'") from None
    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return TensorDataset(images, torch.tensor(digits.target), torch.arange(len(images)))


def train_and_capture(data: TensorDataset, work_dir: Path, *, epochs: int) -> Iterator[Epoch]:
    """Train; capture all of validation at checkpoint epochs into ``work_dir/epoch_N/debugger``."""
    torch.manual_seed(SEED)
    train, validation = torch.utils.data.random_split(data, [0.8, 0.2])
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with _one_thread(), SequentialDebugger(DEBUGGERS, model, page_size_mb=1) as debugger:
        for epoch in range(epochs):
            loss = _train(model, optimizer, DataLoader(train, batch_size=32, shuffle=True))
            folder = work_dir / f"epoch_{epoch}" / "debugger"
            if checkpoint := (epoch + 1) % CHECKPOINT_EVERY == 0 or epoch + 1 == epochs:
                debugger.reset_buffer(folder)
                debugger.enabled = True
                if not debugger.enabled:
                    raise ConfigError("ENDOSCOPE=off is set, so that nothing is captured; unset it for the demo")
            verdicts = _validate(model, DataLoader(validation, batch_size=32), debugger)
            debugger.enabled = False
            yield Epoch(epoch, loss, verdicts, debugger.save_all(folder) if checkpoint else None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on images this small is not worth dividing, and threads that wait for each other slow it down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.train()
    losses = []
    for images, labels, _ in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def _validate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], debugger: SequentialDebugger) -> list[Verdict]:
    model.eval()
    verdicts = []
    for images, labels, idx in loader:
        outputs = model(images)
        debugger({"inputs": images, "labels": labels, "outputs": outputs, "meta_info": {"idx": idx}}, model)
        losses = F.cross_entropy(outputs, labels, reduction="none")
        confidence, prediction = outputs.softmax(1).max(1)
        rows = zip(*(t.tolist() for t in (idx, labels, prediction, confidence, losses)), strict=True)
        verdicts += [Verdict(*row) for row in rows]
    return verdicts
