"""The names in the folder of a run, for writers and readers; docs/run-folder.md explains them."""

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
"""Files that only an epoch of a training run has."""

_EPOCH = re.compile(r"epoch_(0|[1-9][0-9]{0,8})")


def scores_file(split: Split) -> str:
    """``validation_scores.json`` or ``evaluation_scores.json``."""
    return f"{split}_scores.json"


def epoch_folder(epoch: int) -> str:
    """The folder of an epoch, counted from 0.

    >>> epoch_folder(4)
    'epoch_4'
    """
    return f"epoch_{epoch}"


def epoch_of(name: str) -> int | None:
    """The epoch whose folder has this name; None for other names.

    >>> epoch_of("epoch_4"), epoch_of("epoch_04")
    (4, None)
    """
    match = _EPOCH.fullmatch(name)
    return int(match[1]) if match else None


def epoch_folders(work_dir: Path) -> dict[int, Path]:
    """The epochs that have a folder, in ascending order."""
    if not work_dir.is_dir():
        return {}
    names = os.listdir(work_dir)
    return dict(sorted((epoch, work_dir / name) for name in names if (epoch := epoch_of(name)) is not None))
