"""What a work folder allows: whether training may start in it, and what an earlier attempt stored."""

from __future__ import annotations

from pathlib import Path

from endoscope.errors import ConfigError
from endoscope.runners.state.run_folder import RunFolder
from endoscope.runs import layout
from endoscope.runs.about import About


def check_folder(folder: RunFolder, *, resumed: bool) -> None:
    """Refuse to train in the folder of an evaluation, or over a run whose checkpoints are gone."""
    earlier, holds = folder.earlier(), f"work_dir: {str(folder.path)!r} holds"
    if earlier.job == "eval":
        raise ConfigError(f"{holds} an evaluation; choose another folder")
    done = folder.done_before()
    # After one epoch the checkpoint may not have been written yet.
    if not resumed and (done > 1 or earlier.status == "finished"):
        raise ConfigError(f"{holds} a run of {done} epochs whose checkpoints are gone; choose another folder")


def stored_datapoints_epoch(work_dir: Path, earlier: About, epoch: int) -> int:
    """The epoch whose validation stored ``datapoints/``; ``epoch``, the next one, if that is still to be done."""
    stored = earlier.details.get("datapoints_epoch", 0)
    exists = (work_dir / layout.DATAPOINTS).is_dir()
    return stored if exists and type(stored) is int and stored < epoch else epoch
