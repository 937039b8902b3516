"""docs/runners.md: what it names exists, and what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from tests.runners.training import Net, config

from endoscope.runners import BaseEvaluator, BaseTrainer, SupervisedTrainer
from endoscope.runners.state.checkpoints import load_checkpoint

TEXT = (Path(__file__).parents[2] / "docs" / "runners.md").read_text()


def shown(start: str) -> dict[str, Any]:
    """What the snippet defines that begins so."""
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if start in code)
    found: dict[str, Any] = {"torch": torch, "SupervisedTrainer": SupervisedTrainer, "load_teacher": Net}
    exec(code, found)
    return found


def test_every_method_that_is_named_exists() -> None:
    named = set(re.findall(r"`(_\w+)", TEXT))
    assert len(named) > 15
    assert {name for name in named if not hasattr(BaseTrainer, name)} == {"_eval_epoch_", "_after_eval_loop_"}
    assert all(hasattr(BaseEvaluator, name) for name in ("_eval_epoch_", "_after_eval_loop_", "_eval_step", "_forward"))


def test_an_own_step(tmp_path: Path) -> None:
    shown("class Distillation")["Distillation"](config(tmp_path, criterion=torch.nn.MSELoss())).run()
    assert (tmp_path / "epoch_2" / "checkpoint.pt").exists()


def test_own_state(tmp_path: Path) -> None:
    trainer = shown("class Averaging")["Averaging"](config(tmp_path))
    trainer.run()
    kept = load_checkpoint(tmp_path / "epoch_2" / "checkpoint.pt")["extra"]["average"]
    assert kept["n_averaged"] == trainer.step
    again = shown("class Averaging")["Averaging"](config(tmp_path, epochs=4))
    again.run()
    assert int(again.average.n_averaged) == again.step > trainer.step
