"""About: the contents of run.json, checked field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Literal, get_args

from endoscope.runs import fields
from endoscope.runs.fields import Fields
from endoscope.runs.files import Decoded, checked, load_json
from endoscope.runs.scores import Direction

FORMAT = "endoscope-run"
VERSION = 1

Job = Literal["train", "eval"]
Status = Literal["running", "finished", "interrupted", "failed"]
"""The status that a run writes about itself."""


@dataclass(frozen=True, slots=True)
class About:
    """The contents of run.json. Missing and invalid fields are None or empty."""

    job: Job | None = None
    status: Status | None = None
    error: str | None = None
    started: datetime | None = None
    attempt_started: datetime | None = None
    updated: datetime | None = None
    ended: datetime | None = None
    attempts: int | None = None
    command: tuple[str, ...] | None = None
    host: str | None = None
    pid: int | None = None
    process: str | None = None
    """The process of rank 0; see `endoscope.runs.process.identity`."""
    seed: int | None = None
    device: str | None = None
    precision: str | None = None
    world_size: int | None = None
    epochs: int | None = None
    """The number of epochs in the config."""
    checkpoint_epochs: tuple[int, ...] | None = None
    class_names: tuple[str, ...] | None = None
    by_class: tuple[str, ...] | None = None
    """Scores with one value per class, such as ``iou`` for ``iou/0`` and ``iou/1``; see `score_label`."""
    directions: Mapping[str, Direction] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """The complete file as plain data, including ``git``, ``versions`` and keys of other versions."""


def read_about(file: BinaryIO) -> Decoded[About]:
    """The contents of a run.json, and what is wrong with them."""
    content = checked(load_json(file))
    fields.check_format(content, FORMAT, VERSION)
    f = Fields(content)
    values: dict[str, Any] = {name: f.take(name, read) for name, read in _READERS.items()}
    about = About(**values, directions=f.table("directions", fields.direction), details=content)
    for key in ("job", "status"):
        if content.get(key) is None:
            f.problems.append(f"it has no {key!r}")
    return about, f.problems


def _one_of(choice: Any) -> Any:
    def read(value: Any) -> Any:
        if value not in get_args(choice):
            raise ValueError(f"expected one of {', '.join(map(repr, get_args(choice)))}")
        return value

    return read


_READERS: dict[str, Callable[[Any], Any]] = {
    "job": _one_of(Job),
    "status": _one_of(Status),
    "checkpoint_epochs": fields.counts,
    **dict.fromkeys(("error", "host", "process", "device", "precision"), fields.text),
    **dict.fromkeys(("started", "attempt_started", "updated", "ended"), fields.time),
    **dict.fromkeys(("attempts", "pid", "seed", "world_size", "epochs"), fields.count),
    **dict.fromkeys(("command", "class_names", "by_class"), fields.texts),
}
