"""TrainingState: the parts of a training that a checkpoint holds, and reading them back when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from endoscope.runners.state.checkpoints import (
    CheckpointError,
    check_storable,
    latest_checkpoint,
    load_checkpoint,
    load_other_buffers,
    load_weights,
    other_buffers,
)

_REQUIRED = ("step", "criterion", "optimizer", "scaler")


@dataclass(frozen=True)
class TrainingState:
    """The parts of a training that have a state."""

    model: torch.nn.Module
    criterion: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler

    def check_storable(self) -> None:
        """Raise `ConfigError` if a part has a state that could not be resumed from."""
        for name in ("model", "criterion", "optimizer", "scheduler"):
            if (part := getattr(self, name)) is not None:
                check_storable(name, part.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "criterion": self.criterion.state_dict(),
            "other_buffers": {"model": other_buffers(self.model), "criterion": other_buffers(self.criterion)},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: Mapping[str, Any], path: Path) -> None:
        """Load a checkpoint that was read from ``path``."""
        load_weights(self.model, state["model"], path)
        self.criterion.load_state_dict(state["criterion"])
        for name in ("model", "criterion"):
            load_other_buffers(getattr(self, name), state.get("other_buffers", {}).get(name, {}))
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def read_training_checkpoint(work_dir: Path, epoch: int, path: Path, device: torch.device) -> dict[str, Any]:
    """Read the checkpoint of an epoch. If it cannot be used, the error says how to resume without it."""
    try:
        state = load_checkpoint(path, device=device)
        if missing := [name for name in _REQUIRED if name not in state]:
            raise CheckpointError(f"the checkpoint {str(path)!r} has no {missing[0]!r}, so it cannot be resumed")
        if state.get("epoch", epoch) != epoch:
            raise CheckpointError(f"the checkpoint {str(path)!r} belongs to epoch {state['epoch']}")
    except CheckpointError as e:
        earlier = latest_checkpoint(work_dir, before=epoch)
        remedy = "there is no earlier checkpoint: choose another work_dir to start again"
        if earlier is not None:
            remedy = f"delete this file to resume the run after epoch {earlier[0]}, the last one with a checkpoint"
        raise CheckpointError(f"{e}\n{remedy}") from e
    return state
