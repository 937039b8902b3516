"""SingleThread: one background thread of ours, also where a signal comes in the middle of starting it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SingleThread:
    """Runs ``work`` once, on a daemon thread of that name, however often it is started.

    >>> thread = SingleThread(work, name="endoscope-writer")
    >>> thread.start()
    >>> thread.join()

    Ctrl-C inside ``Thread.start`` can leave a thread behind that nobody knows of, and a signal handler can come to
    start a second one. So any of them may run: the first takes the work, the others find it taken and end at once.
    """

    def __init__(self, work: Callable[[], None], *, name: str) -> None:
        self._work = work
        self._name = name
        self._taken = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.started = False

    def start(self) -> RuntimeError | None:
        """Returns why there is no thread, where the system gives no more."""
        if not self.started:
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError as e:
                return e
            self.started = True
        return None

    def _run(self) -> None:
        if not self._taken.acquire(blocking=False):
            return
        self._thread, self.started = threading.current_thread(), True
        try:
            self._work()
        finally:
            self._ended.set()

    @property
    def current(self) -> bool:
        """Whether this is that thread."""
        return threading.current_thread() is self._thread

    @property
    def alive(self) -> bool:
        """Whether it works, or is about to."""
        return self.started and not self._ended.is_set() and (self._thread is None or self._thread.is_alive())

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, if it was started. Not by ``Thread.join`` alone, which takes a thread for ended when it was
        interrupted in the wait."""
        if self.started and self._ended.wait(timeout_s) and self._thread is not None:
            self._thread.join(timeout_s)
