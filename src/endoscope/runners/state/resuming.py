"""Resuming: whether training may start in a work folder, and continuing the run that is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from endoscope.errors import ConfigError
from endoscope.runners.config.settings import Settings
from endoscope.runners.state.run_folder import RunFolder
from endoscope.runners.state.same_run import check_same_run, warn_of_changes
from endoscope.runners.state.training_state import TrainingState, read_training_checkpoint
from endoscope.runs import layout


@dataclass(frozen=True)
class Resumed:
    """Where a resumed run continues."""

    epoch: int
    """The next epoch."""
    step: int
    extra: dict[str, Any]
    """What the trainer's `_extra_state` returned."""
    checkpoint_epochs: list[int]
    """The checkpoint epochs so far; a shorter run may have had others."""
    datapoints_epoch: int
    """The epoch whose validation stored ``datapoints/``; the next epoch if that is still to be done."""


def check_folder(folder: RunFolder, *, resumed: bool) -> None:
    """Refuse to train in the folder of an evaluation, or over a run whose checkpoints are gone."""
    earlier, holds = folder.earlier(), f"work_dir: {str(folder.path)!r} holds"
    if earlier.job == "eval":
        raise ConfigError(f"{holds} an evaluation; choose another folder")
    done = folder.done_before()
    # After one epoch the checkpoint may not have been written yet.
    if not resumed and (done > 1 or earlier.status == "finished"):
        raise ConfigError(f"{holds} a run of {done} epochs whose checkpoints are gone; choose another folder")


def resume(
    folder: RunFolder,
    checkpoint: tuple[int, Path],
    state: TrainingState,
    *,
    config: Mapping[str, Any],
    settings: Settings,
    about: Mapping[str, Any],
    device: torch.device,
) -> Resumed:
    """Load the checkpoint of an epoch into ``state``, after checking that it belongs to the same run.

    about: the ``device`` and ``world_size`` of this attempt; a change of them is warned of. Empty for no warning.
    """
    epoch, path = checkpoint
    stored_config = check_same_run(folder.path, config, type(settings))
    content = read_training_checkpoint(folder.path, epoch, path, device)
    state.load(content, path)
    folder.resume(epoch + 1)
    earlier = folder.earlier()
    if about and epoch + 1 < settings.epochs:
        warn_of_changes(earlier, stored_config, about, settings)
    stored = earlier.details.get("datapoints_epoch", 0)
    exists = (folder.path / layout.DATAPOINTS).is_dir() and type(stored) is int and stored <= epoch
    return Resumed(
        epoch=epoch + 1,
        step=content["step"],
        extra=content.get("extra", {}),
        checkpoint_epochs=[e for e in earlier.checkpoint_epochs or () if e <= epoch],
        datapoints_epoch=stored if exists else epoch + 1,
    )
