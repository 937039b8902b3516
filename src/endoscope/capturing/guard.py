"""Guard: runs a user's debugger so that nothing it does reaches the user's training.

Its exceptions are kept, its random draws are undone, no gradient is recorded for it, and what it returns is copied.
Runs on the thread that calls the model (or autograd's, for gradients).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from endoscope.capturing.randomness import CUDA_BUILT, QuietThread, random_kept, threads_alive
from endoscope.capturing.snapshot import Snapshot, owned
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.errors import DebuggerError

log = logging.getLogger("endoscope")

_generator = torch.default_generator
_is_grad_enabled, _set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
OnError = Literal["record", "raise"]
FAILURES_TO_MUTE = 3


@dataclass
class Failures:
    """How often a debugger has failed: in all, in a row, and the last error."""

    count: int = 0
    in_a_row: int = 0
    last: str = ""

    @property
    def muted(self) -> bool:
        return self.in_a_row >= FAILURES_TO_MUTE

    def __str__(self) -> str:
        return f"failed {self.count} times{', then muted' if self.muted else ''}; last: {self.last}"


class Guard:
    """Calls debuggers by name and keeps account of their failures."""

    def __init__(self, *, on_error: OnError) -> None:
        self._on_error = on_error
        self.failures: dict[str, Failures] = {}

    def muted(self, name: str) -> str | None:
        """Why this debugger is no longer called; None while it is."""
        failures = self.failures.get(name)
        if failures is None or not failures.muted:
            return None
        return f"muted after {FAILURES_TO_MUTE} failures in a row, the last: {failures.last}"

    def call(
        self, name: str, debugger: BaseDebugger, draws: bool, function: Callable[..., Any], *args: Any
    ) -> Snapshot | str:
        """Run ``function(*args)`` for a debugger, which ``draws`` random numbers as `forms.may_draw` says; returns a
        copy of its result, or the message of its failure.

        Written out rather than called: in a hook a function costs many times what it costs elsewhere, because the model
        has taken the caches.
        """
        random = state = None
        if draws:
            if (
                debugger.uses_random
                or threads_alive() > QuietThread.alive
                or (CUDA_BUILT and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
            ):
                random = random_kept(python=debugger.uses_random)
                random.__enter__()
            else:  # nobody else can draw, and there is no other generator: its state is all that has to be put back
                state = _generator.get_state()
        gradient = _is_grad_enabled()
        if gradient:
            _set_grad_enabled(False)
        try:
            try:
                returned = function(*args)
            finally:
                if state is not None:
                    _generator.set_state(state)
                elif random is not None:
                    random.__exit__(None, None, None)
                if _is_grad_enabled():  # switched on inside
                    _set_grad_enabled(False)
            result = owned(returned)
        except Exception as e:  # noqa: BLE001
            return self.failed(name, e)
        finally:
            if gradient:
                _set_grad_enabled(True)
        if self.failures:
            self.succeeded(name)
        return result

    def succeeded(self, name: str) -> None:
        """Failures before this are no longer in a row."""
        if name in self.failures:
            self.failures[name].in_a_row = 0

    def failed(self, name: str, error: Exception) -> str:
        """Take a failure into account; returns its message, or raises it for those who want that."""
        if self._on_error == "raise":
            raise DebuggerError(f"debugger {name!r} raised {type(error).__name__}: {error}") from error
        failures = self.failures.setdefault(name, Failures())
        failures.count += 1
        failures.in_a_row += 1
        failures.last = f"{type(error).__name__}: {error}"[:1000]
        if failures.count == 1:
            log.warning(
                "debugger %r raised %s; training goes on, the failure is recorded with the datapoint",
                name,
                failures.last,
                exc_info=error,
            )
        if failures.in_a_row == FAILURES_TO_MUTE:
            log.warning("debugger %r failed %d times in a row and is muted", name, FAILURES_TO_MUTE)
        return failures.last
