"""Folders of runs as a runner writes them, made without a runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runs.atomic import write_json
from endoscope.runs.scores import Scores, write_scores

NAN = float("nan")
RUN: dict[str, Any] = {
    "format": "endoscope-run",
    "version": 1,
    "job": "train",
    "status": "finished",
    "error": None,
    "started": "2024-02-29T12:00:00+00:00",
    "updated": "2024-02-29T13:00:00+00:00",
    "ended": "2024-02-29T13:00:00+00:00",
    "attempts": 2,
    "command": ["endoscope", "train", "config.py"],
    "pid": 17,
    "git": None,
    "versions": {"torch": "2.6"},
    "seed": 7,
    "device": "cpu",
    "precision": "float32",
    "world_size": 1,
    "save_datapoints": 2000,
    "directions": {"accuracy": "higher", "loss": "lower", "macro_f1": "higher"},
    "class_names": ["red", "grün"],
    "epochs": 2,
    "checkpoint_epochs": [1],
}
CONFIG = {"epochs": 2, "model": {"class": "m.Net", "args": {"width": 3}}}
PROGRESS: dict[str, Any] = {
    "updated": "2024-02-29T12:30:00+00:00",
    "epochs": [
        {
            "epoch": epoch,
            "step": 5 * (epoch + 1),
            "learning_rates": [0.1],
            "loss": {"mean": 0.5, "count": 5, "non_finite": 0},
            "scores": {"accuracy": 0.5, "loss": NAN},
            "train_s": 1.5,
            "val_s": 0.5,
        }
        for epoch in (0, 1)
    ],
    "now": {"stage": "epoch 2 training", "step": 12},
}
SCORES = Scores(
    directions={"accuracy": "higher", "loss": "lower", "macro_f1": "higher"},
    aggregated={"accuracy": 0.5, "loss": NAN, "macro_f1": 0.25},
    non_finite={"accuracy": 0, "loss": 1},
    per_datapoint={
        17: {"accuracy": 1.0, "loss": 0.25},
        18: {"accuracy": 0.0, "loss": NAN},
        101: {"accuracy": 0.5, "loss": 3.0},
    },
)


def make_pages(folder: Path, **members: Any) -> None:
    """One record of two datapoints, 17 and 18."""
    store = PageStore(folder, StoreSettings(1 << 20, 1 << 20, overwrite=True))
    store.put([17, 18], {name: snapshot(value) for name, value in members.items()}, {})
    store.close()


def make_training(folder: Path, *, epochs: int = 2, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {**RUN, **changed})
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "progress.json", PROGRESS)
    make_pages(folder / "datapoints", inputs=torch.arange(4.0).reshape(2, 2), labels=torch.tensor([0, 1]))
    for epoch in range(epochs):
        inside = folder / f"epoch_{epoch}"
        inside.mkdir()
        write_scores(SCORES, inside, split="validation", epoch=epoch)
        write_json(inside / "training_losses.json", {"loss": [1.0, NAN, 0.5], "part": [0.5, 0.5, 0.25]})
    make_pages(inside / "outputs", outputs=torch.tensor([[0.5], [1.5]]))
    make_pages(inside / "debugger", features={"map": torch.ones(2, 3)})
    (inside / "checkpoint.pt").touch()
    return folder


def make_evaluation(folder: Path, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    about = {key: value for key, value in RUN.items() if key not in ("epochs", "checkpoint_epochs")}
    write_json(folder / "run.json", {**about, "job": "eval", **changed})
    write_json(folder / "config.json", CONFIG)
    write_scores(SCORES, folder, split="evaluation")
    make_pages(folder / "outputs", outputs=torch.tensor([[0.5], [1.5]]))
    return folder


def change(path: Path, **changed: Any) -> None:
    """Rewrite a JSON file in place with other members."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
