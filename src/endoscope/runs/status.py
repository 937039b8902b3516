"""How a run is: what it says of itself, unless it says that it is running and its process is no more."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from endoscope.runs import process
from endoscope.runs.about import About

SILENT = timedelta(minutes=10)
"""How long a run whose process cannot be looked at may say nothing: a step, or the first batch, may take minutes."""

Status = Literal["running", "finished", "interrupted", "failed", "died", "unknown"]


def true_status(about: About, last_heard: datetime | None, *, now: datetime) -> Status:
    """The status of a run that was last heard from at ``last_heard``."""
    if about.status != "running":
        return about.status or "unknown"
    found = process.state(about.process) if about.process is not None else "unknown"
    if found == "unknown":
        # A time to come is no sign of life, but clocks of two machines differ a little.
        recent = last_heard is not None and abs(now - last_heard) <= SILENT
        found = "alive" if recent else "gone"
    return "running" if found == "alive" else "died"
