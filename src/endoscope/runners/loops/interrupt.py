"""Interrupt: Ctrl-C and SIGTERM are recorded, and the loop ends at a point from which it can be resumed."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal; its progress is saved."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Interrupt:
    """Within its block, the first signal is recorded; a second one ends the process in the usual way.

    >>> with Interrupt() as interrupt:
    ...     for batch in loader:
    ...         step(batch)
    ...         interrupt.check()       # raises Interrupted
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal, if one arrived."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self.signal = None
        if threading.current_thread() is threading.main_thread():  # only there handlers can be set
            self._handlers = {number: signal.signal(number, self._record) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.__exit__()

    def check(self) -> None:
        if self.signal is not None:
            raise Interrupted(self.signal)
