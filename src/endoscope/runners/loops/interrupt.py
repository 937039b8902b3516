"""Ending a run from outside: Ctrl-C and SIGTERM are noted, and the loop ends where it can be resumed."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The run was asked to end; everything that it had is saved."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Interrupt:
    """While entered, the first signal is noted and a second one ends the process as usual.

    >>> with Interrupt() as interrupt:
    ...     for batch in loader:
    ...         step(batch)
    ...         interrupt.check()       # raises Interrupted
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}
        self._stays = False

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only there can signals be taken
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stays:
            self._put_back()

    def stay(self) -> None:
        """Note a first signal even after the block: for an error that must be told before the process ends."""
        self._stays = True

    def _put_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        self._put_back()

    @property
    def noted(self) -> int | None:
        """The signal that has come, if one has."""
        return self._noted

    def check(self) -> None:
        if self._noted is not None:
            raise Interrupted(self._noted)
