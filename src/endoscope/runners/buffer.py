"""AsyncBuffer: device values become host values on a thread, and the loop that makes them never waits for a device.

`AsyncBuffer.put` runs on the caller's thread: it queues a copy and returns. The thread "endoscope-buffer" waits for
the copy, converts it and keeps the result. It is started and woken for many values together: beside a model that
computes on every core, a thread that starts takes the loop up to 2 ms, and all the rest 20 us. Few values are converted
by whoever asks for them.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.randomness import QuietThread
from endoscope.tensors import Snapshot, snapshot

log = logging.getLogger("endoscope")

T = TypeVar("T")

_WAKE = 256  # values that may pile up before the thread is woken
_LOOK_S = 1.0  # how often a wait looks whether the thread still lives
_EXIT_S = 5.0  # how long the end of the program waits for a conversion that is under way


class BufferFailed(EndoscopeError, RuntimeError):
    """A value could not be converted on the buffer's thread; the cause is chained."""


class BufferClosed(EndoscopeError, RuntimeError):
    """The buffer was used after `AsyncBuffer.close`."""


class AsyncBuffer(Generic[T]):
    """Keeps ``convert(value)`` for every value that is put, in order.

    >>> losses = AsyncBuffer(float)
    >>> losses.put(torch.tensor(0.5, requires_grad=True))
    >>> losses.values()
    [0.5]

    ``limit`` values wait at most; then `put` waits for the thread. When ``convert`` raises, the error is kept, later
    values are dropped, and `put`, `flush`, `values` and `close` raise `BufferFailed`, until `reset`. The thread starts
    when values have piled up, and ends with `close`, with `reset`, or when nobody holds the buffer any more; so
    ``convert`` must not hold the buffer. A forked child starts empty, with a thread of its own; so does a copy.
    """

    def __init__(self, convert: Callable[[Any], T], *, limit: int = 1024) -> None:
        if limit < 1:
            raise ConfigError(f"limit={limit}; a buffer needs room for at least one value")
        self._convert = convert
        self._limit = limit
        self._closed = False
        self._renew()

    def put(self, value: Any) -> None:
        """Queue a copy of ``value``, a tensor or any nesting of them."""
        channel = self._mine()
        if channel.error is not None or self._closed:
            self._refuse(channel)
        copy = snapshot(value)
        with channel.lock:
            if len(channel.waiting) >= self._limit:
                channel.wait_for_room(self._limit)
            channel.waiting.append(copy)
            if len(channel.waiting) >= channel.wake_at and not channel.woken and channel.converting is None:
                if channel.thread is None and not self._start(channel):
                    channel.convert_here(self._convert)
                    return
                channel.woken = True
                channel.signals.put(_WORK)

    def flush(self) -> None:
        """Return when everything put so far has been converted."""
        channel = self._mine()
        channel.reach(self._convert)
        if channel.error is not None:
            self._refuse(channel)

    def values(self) -> list[T]:
        """Everything that was put, converted; waits for it."""
        self.flush()
        return list(self._mine().kept)

    def reset(self) -> None:
        """Forget all values and a kept error; waits for nothing. An error that nobody has seen is logged."""
        channel = self._mine()
        if channel.error is not None and not channel.told:
            log.warning("a value was lost in a buffer that is reset now (%s)", _named(channel.error))
        self._renew()

    def close(self) -> None:
        """Convert what is queued and end the thread. The values stay; may be called twice."""
        if self._closed:
            return
        self._closed = True
        channel = self._mine()
        channel.reach(self._convert)
        channel.end()
        if channel.thread is not None and channel.thread is not threading.current_thread():
            channel.thread.join()
        if channel.error is not None:
            self._refuse(channel)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(AsyncBuffer, limit=self._limit), (self._convert,)

    def _mine(self) -> _Channel[T]:
        if self._channel.pid != os.getpid():  # forked: the thread, and perhaps a held lock, stayed with the parent
            self._renew()
        return self._channel

    def _renew(self) -> None:
        before: weakref.finalize[..., AsyncBuffer[T]] | None = getattr(self, "_finalizer", None)
        self._channel: _Channel[T] = _Channel(min(_WAKE, (self._limit + 1) // 2))
        self._finalizer = weakref.finalize(self, self._channel.end)
        self._finalizer.atexit = False
        if before is not None:
            before()

    def _start(self, channel: _Channel[T]) -> bool:
        # The thread knows the channel and not the buffer, so that a forgotten buffer can be collected.
        thread = QuietThread(target=_work, args=(channel, self._convert), name="endoscope-buffer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            return False
        channel.thread = thread
        _running.add(channel)
        _threads.add(thread)
        return True

    def _refuse(self, channel: _Channel[T]) -> None:
        if channel.error is None:
            raise BufferClosed("this buffer is closed; make a new one")
        channel.told = True
        raise BufferFailed(
            f"a value could not be brought to the host ({_named(channel.error)}); later ones were dropped; "
            "mend the cause, then reset the buffer"
        ) from channel.error


_WORK = object()
_END = object()


class _Channel(Generic[T]):
    """What a buffer and its thread share."""

    def __init__(self, wake_at: int) -> None:
        self.pid = os.getpid()
        self.wake_at = wake_at
        self.lock = threading.RLock()  # a convert function, or a signal handler, may put as well
        self.room = threading.Condition(self.lock)
        self.blocked = 0
        self.waiting: deque[Snapshot] = deque()
        # A SimpleQueue may be put into from anywhere, also from a finalizer that runs in the middle of a put.
        self.signals: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.woken = False
        self.ended = False
        self.kept: list[T] = []
        self.error: BaseException | None = None
        self.told = False
        self.thread: threading.Thread | None = None
        self.converting: threading.Thread | None = None  # another one, which does so while there is no thread

    def wait_for_room(self, limit: int) -> None:
        """Called with the lock held. The thread itself never waits: nobody else would make room."""
        self.blocked += 1
        try:
            while len(self.waiting) >= limit and self.alive() and self.thread is not threading.current_thread():
                if not self.woken:
                    self.woken = True
                    self.signals.put(_WORK)
                self.room.wait(_LOOK_S)
        finally:
            self.blocked -= 1

    def reach(self, convert: Callable[[Any], T]) -> None:
        """Have what was queued so far dealt with: here, while there is no thread, which would take longer to start."""
        if threading.current_thread() in (self.thread, self.converting):
            raise BufferFailed("a buffer's convert function must not wait for the buffer itself")
        with self.lock:
            if self.thread is None:
                self.convert_here(convert)
                return
        mark = threading.Event()
        self.signals.put(mark)
        while not mark.wait(_LOOK_S) and self.alive():
            pass

    def convert_here(self, convert: Callable[[Any], T]) -> None:
        """On the caller's thread. The lock is held, and there is no thread of ours."""
        known = self.error
        self.converting = threading.current_thread()
        try:
            self.convert_waiting(convert)
        finally:
            self.converting = None
        if isinstance(self.error, KeyboardInterrupt) and self.error is not known:
            raise self.error  # the user's Ctrl-C, which is for the caller

    def convert_waiting(self, convert: Callable[[Any], T]) -> None:
        """Convert what is waiting now, and keep the first error."""
        for _ in range(len(self.waiting)):
            if self.ended:
                break
            value = self.waiting.popleft()
            try:
                if self.error is None:
                    self.kept.append(convert(value.wait()))
            except BaseException as e:  # noqa: BLE001  (a thread that died would leave its callers waiting)
                self.error = e
            del value
            if self.blocked:
                with self.lock:
                    self.room.notify_all()

    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def end(self) -> None:
        """Have the thread end without converting what still waits. Takes no lock: a finalizer calls it."""
        self.ended = True
        self.signals.put(_END)


def _work(channel: _Channel[T], convert: Callable[[Any], T]) -> None:
    while (signal := channel.signals.get()) is not _END:
        channel.woken = False
        channel.convert_waiting(convert)
        if isinstance(signal, threading.Event):
            signal.set()
    channel.waiting.clear()


_running: weakref.WeakSet[_Channel[Any]] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""A thread outlives its channel for a moment, in which it frees the channel's tensors."""


@atexit.register
def _end_all() -> None:
    """A daemon thread that comes back from C++ into a dying interpreter can bring the process down."""
    for channel in list(_running):
        if channel.pid == os.getpid() and channel.thread is not None:
            channel.end()
    for thread in list(_threads):
        thread.join(_EXIT_S)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
