"""The names of everything in the folder of a run, which docs/run-folder.md explains. Writers and readers use these."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

RUN = "run.json"
CONFIG = "config.json"
PROGRESS = "progress.json"
CHECKPOINT = "checkpoint.pt"
TRAINING_LOSSES = "training_losses.json"

DATAPOINTS = "datapoints"
OUTPUTS = "outputs"
DEBUGGER = "debugger"

Split = Literal["validation", "evaluation"]

OF_TRAINING = (TRAINING_LOSSES, "validation_scores.json")
"""What only an epoch of a training run has."""

_EPOCH = re.compile(r"epoch_(0|[1-9][0-9]{0,8})")


def scores_file(split: Split) -> str:
    """``validation_scores.json`` or ``evaluation_scores.json``."""
    return f"{split}_scores.json"


def epoch_folder(epoch: int) -> str:
    """Where an epoch, counted from 0, keeps what it has.

    >>> epoch_folder(4)
    'epoch_4'
    """
    return f"epoch_{epoch}"


def epoch_of(name: str) -> int | None:
    """The epoch whose folder has that name.

    >>> epoch_of("epoch_4"), epoch_of("epoch_04")
    (4, None)
    """
    found = _EPOCH.fullmatch(name)
    return int(found[1]) if found else None


def epoch_folders(work_dir: Path) -> dict[int, Path]:
    """The epochs that have a folder, in order."""
    if not work_dir.is_dir():
        return {}
    found = {epoch: work_dir / name for name in os.listdir(work_dir) if (epoch := epoch_of(name)) is not None}
    return dict(sorted(found.items()))
