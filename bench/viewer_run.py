"""Writes the run for bench/viewer.py without training: scores of all datapoints in all epochs, and pages.

Every datapoint has its input, and small debug outputs in every epoch. One in twenty also has maps of 64 x 56 x 56,
which make up most of the bytes. The run claims to be running, in this process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from endoscope.capturing.snapshot import snapshot
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runs import layout, process
from endoscope.runs.atomic import write_json
from endoscope.runs.fields import Direction
from endoscope.runs.scores import Scores, write_scores
from endoscope.values import per_datapoint, whole_batch

CLASSES = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DIRECTIONS: dict[str, Direction] = {"loss": "lower", "accuracy": "higher", "confidence": "higher"}
LARGE, SMALL = (64, 56, 56), (64, 4, 4)
"""Shapes of the feature maps."""
BATCH = 50
_PAGES = StoreSettings(page_size=100 << 20, queue_bytes=256 << 20)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run."""

    datapoints: int
    epochs: int
    large: int
    """Datapoints with large maps."""

    @property
    def indices(self) -> list[int]:
        """The datapoints with large maps, spread evenly."""
        return [k * self.datapoints // self.large for k in range(self.large)] if self.large else []

    @property
    def bytes(self) -> int:
        """About how many bytes will be written."""
        small = 4 * (64 * 4 * 4 + 14 * 14 + 64 + 10) + 600
        large = 4 * 64 * 56 * 56
        return self.datapoints * 4 * 3 * 64 * 64 + self.epochs * (self.datapoints * small + self.large * large)


def write_run(folder: Path, size: Size) -> None:
    """Write the complete run."""
    folder.mkdir(parents=True)
    _write_about(folder, size.epochs)
    _write_pages(folder / layout.DATAPOINTS, _split(range(size.datapoints)), _inputs, seed=0)
    large = set(size.indices)
    rest = [k for k in range(size.datapoints) if k not in large]
    for epoch in range(size.epochs):
        write_scored_epoch(folder, epoch, size.datapoints)
        inside = folder / layout.epoch_folder(epoch)
        _write_pages(inside / layout.OUTPUTS, _split(range(size.datapoints)), _outputs, seed=epoch)
        batches = [*_split(rest), *_split(size.indices, 10)]
        _write_pages(inside / layout.DEBUGGER, batches, lambda part, g: _seen(part, g, part[0] in large), seed=epoch)
    _write_progress(folder, size.epochs)


def renew(folder: Path, size: Size) -> None:
    """Reset an existing run of that size: running in this process, without later epochs."""
    for epoch, inside in layout.epoch_folders(folder).items():
        if epoch >= size.epochs:
            shutil.rmtree(inside)
    _write_about(folder, size.epochs)
    _write_progress(folder, size.epochs)


def write_scored_epoch(folder: Path, epoch: int, datapoints: int) -> None:
    """Write the scores and losses of an epoch, and mark it as done."""
    g = torch.Generator().manual_seed(1000 + epoch)
    losses = torch.empty(datapoints, dtype=torch.float64).exponential_(1 + 0.2 * epoch, generator=g)
    confidence = torch.exp(-losses)
    right = (confidence > 0.5).double()
    rows = zip(losses.tolist(), right.tolist(), confidence.tolist(), strict=True)
    table = {k: {"loss": a, "accuracy": b, "confidence": c} for k, (a, b, c) in enumerate(rows)}
    means = {"loss": losses.mean().item(), "accuracy": right.mean().item(), "confidence": confidence.mean().item()}
    scores = Scores(directions=DIRECTIONS, aggregated=means, non_finite=dict.fromkeys(means, 0), per_datapoint=table)
    inside = folder / layout.epoch_folder(epoch)
    inside.mkdir(exist_ok=True)
    write_json(inside / layout.TRAINING_LOSSES, {"loss": losses[:200].tolist()})
    write_scores(scores, inside, split="validation", epoch=epoch)
    _write_progress(folder, epoch + 1)


def _write_about(folder: Path, epochs: int) -> None:
    now = _now()
    about = {
        "format": "endoscope-run", "version": 1, "job": "train", "status": "running", "error": None, "started": now,
        "attempt_started": now, "updated": now, "ended": None, "attempts": 1, "command": ["bench/viewer.py"],
        "pid": os.getpid(), "process": process.identity(os.getpid()), "seed": 0, "device": "cpu",
        "precision": "float32", "world_size": 1, "directions": DIRECTIONS, "class_names": CLASSES, "epochs": epochs,
        "checkpoint_epochs": [],
    }  # fmt: skip
    write_json(folder / layout.RUN, about)
    write_json(folder / layout.CONFIG, {"epochs": epochs})


def _write_progress(folder: Path, epochs: int) -> None:
    done = [{"epoch": k, "step": 200 * (k + 1), "loss": {"mean": 1 / (k + 1), "count": 200}} for k in range(epochs)]
    now = {"stage": f"epoch {epochs} training", "step": 200 * epochs + 1}
    write_json(folder / layout.PROGRESS, {"updated": _now(), "epochs": done, "now": now})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- pages
def _split(indices: Sequence[int], batch: int = BATCH) -> Iterator[list[int]]:
    for k in range(0, len(indices), batch):
        yield list(indices[k : k + batch])


def _write_pages(folder: Path, batches: Any, make: Any, *, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    store = PageStore(folder, _PAGES)
    for part in batches:
        members: Mapping[str, Any] = make(part, g)
        store.put(part, {name: snapshot(value) for name, value in members.items()}, {})
    store.close()


def _inputs(part: list[int], g: torch.Generator) -> dict[str, Any]:
    coarse = torch.rand(len(part), 3, 8, 8, generator=g)
    return {
        "inputs": torch.nn.functional.interpolate(coarse, (64, 64), mode="bilinear"),
        "labels": torch.tensor([k % 10 for k in part]),
        "meta_info": {"idx": torch.tensor(part), "image_filepath": per_datapoint([f"images/{k}.png" for k in part])},
    }


def _outputs(part: list[int], g: torch.Generator) -> dict[str, Any]:
    return {"outputs": torch.randn(len(part), 10, generator=g)}


def _seen(part: list[int], g: torch.Generator, large: bool) -> dict[str, Any]:
    def some(*shape: int) -> Tensor:
        return torch.rand(len(part), *shape, generator=g)

    return {
        "features": {"layer_name": "layer1", "feature_map": some(*(LARGE if large else SMALL)).sub_(0.5).relu_()},
        "head": {"layer_name": "head", "output": some(64)},
        "gradcam": {"gradcam": some(14, 14), "target_class": per_datapoint([k % 10 for k in part])},
        "activations/layer1": {"layer_name": "layer1", "activation_stats": {"mean": some(), "sparsity": some()}},
        "number": whole_batch(0.5),
    }
