"""The true status of a run: what it recorded, unless it recorded ``running`` and its process is gone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from endoscope.runs import process
from endoscope.runs.about import About

SILENT = timedelta(minutes=10)
"""After this time without a write, a run counts as died if its process cannot be checked. One step may take minutes."""

Status = Literal["running", "finished", "interrupted", "failed", "died", "unknown"]


def true_status(about: About, last_heard: datetime | None, *, now: datetime) -> Status:
    """The status of a run whose last write was at ``last_heard``."""
    if about.status != "running":
        return about.status or "unknown"
    state = process.state(about.process) if about.process is not None else "unknown"
    if state == "unknown":
        # The clocks of two machines differ a little; a time far in the future does not show that the run is alive.
        recent = last_heard is not None and abs(now - last_heard) <= SILENT
        state = "alive" if recent else "gone"
    return "running" if state == "alive" else "died"
