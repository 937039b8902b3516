"""Guard: runs a user's debugger so that nothing it does reaches the user's training.

Its exceptions are recorded, its random draws are undone, no gradient is recorded for it, and what it returns is copied.
Runs on the thread that calls the model (or on autograd's, for gradients).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from endoscope.capturing.notes import FAILURES_TO_MUTE, Absence, Reason
from endoscope.capturing.randomness import preserve_random
from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.errors import DebuggerError

log = logging.getLogger("endoscope")

OnError = Literal["record", "raise"]
Draws = bool | None
"""Which random numbers a debugger may draw; see ``BaseDebugger.uses_random``."""


@dataclass
class Failures:
    """How often a debugger has failed, how often of that in a row, and the last error."""

    count: int = 0
    in_a_row: int = 0
    last: str = ""

    @property
    def muted(self) -> bool:
        return self.in_a_row >= FAILURES_TO_MUTE

    def __str__(self) -> str:
        return f"failed {self.count} times{', then muted' if self.muted else ''}; last: {self.last}"


class Guard:
    """Calls debuggers and counts their failures by name."""

    def __init__(self, *, on_error: OnError) -> None:
        self._on_error = on_error
        self.failures: dict[str, Failures] = {}

    def muted(self, name: str) -> Absence | None:
        """Why this debugger is no longer called; None while it is."""
        failures = self.failures.get(name)
        return Absence(Reason.MUTED, failures.last) if failures is not None and failures.muted else None

    def call(self, name: str, function: Callable[..., Any], *args: Any, draws: Draws = None) -> Snapshot | str:
        """Run ``function(*args)`` for a debugger; returns a copy of its result, or the message of its failure."""
        restored = contextlib.nullcontext() if draws is False else preserve_random(python=bool(draws))
        try:
            with torch.no_grad():
                with restored:
                    returned = function(*args)
                result = snapshot(returned)
        except Exception as e:  # noqa: BLE001  # the user's code, down to a __getattr__ of what it returned
            return self.failed(name, e)
        if name in self.failures:
            self.failures[name].in_a_row = 0
        return result

    def failed(self, name: str, error: Exception) -> str:
        """Count a failure; returns its message, or raises it with ``on_error="raise"``."""
        if self._on_error == "raise":
            raise DebuggerError(f"debugger {name!r} raised {type(error).__name__}: {error}") from error
        failures = self.failures.setdefault(name, Failures())
        failures.count += 1
        failures.in_a_row += 1
        failures.last = f"{type(error).__name__}: {error}"[:1000]
        if failures.count == 1:
            log.warning(
                "debugger %r raised %s; training continues, and the failure is recorded with the datapoint",
                name,
                failures.last,
                exc_info=error,
            )
        if failures.in_a_row == FAILURES_TO_MUTE:
            log.warning("debugger %r failed %d times in a row and is muted", name, FAILURES_TO_MUTE)
        return failures.last
