"""Progress: the contents of progress.json, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from endoscope.runs import fields
from endoscope.runs.fields import Fields
from endoscope.runs.files import Decoded, Unreadable, checked, load_json


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """A completed epoch in numbers; None where one is missing."""

    epoch: int
    step: int | None
    """Steps of the optimizer so far, over all epochs."""
    learning_rates: tuple[float, ...]
    loss: Mapping[str, float]
    """Of the training batches: mean, finite_mean, first, last, min, max, count, non_finite."""
    scores: Mapping[str, float]
    """Of the validation, over all datapoints."""
    train_s: float | None
    val_s: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; empty if it has not recorded that yet."""

    updated: datetime | None = None
    epochs: tuple[EpochProgress, ...] = ()
    """The completed epochs, in order."""
    stage: str | None = None
    """The current stage, such as ``epoch 3 training``; None right after an epoch."""
    step: int | None = None


def read_progress(file: BinaryIO) -> Decoded[Progress]:
    """The contents of a progress.json, and the problems with it."""
    content = checked(load_json(file))
    if not isinstance(content, dict):
        raise Unreadable(f"it holds {fields.shown(content)}; expected an object")
    f = Fields(content)
    now = Fields(f.take("now", fields.mapping) or {}, within="now.", problems=f.problems)
    entries = f.take("epochs", fields.entries) or []
    done = {each.epoch: each for k, entry in enumerate(entries) if (each := _epoch(entry, k, f.problems)) is not None}
    epochs = tuple(done[epoch] for epoch in sorted(done))
    stage, step = now.take("stage", fields.text), now.take("step", fields.count)
    return Progress(f.take("updated", fields.time), epochs, stage, step), f.problems


def _epoch(entry: Any, position: int, problems: list[str]) -> EpochProgress | None:
    within = f"epochs.{position}"
    if not isinstance(entry, dict):
        problems.append(f"{within} is {fields.shown(entry)}; expected an object")
        return None
    f = Fields(entry, within=f"{within}.", problems=problems)
    epoch = f.take("epoch", fields.count)
    if epoch is None:
        problems.append(f"{within} has no epoch number")
        return None
    return EpochProgress(
        epoch,
        f.take("step", fields.count),
        f.take("learning_rates", fields.numbers) or (),
        f.table("loss", fields.number),
        f.table("scores", fields.number),
        f.take("train_s", fields.number),
        f.take("val_s", fields.number),
    )
