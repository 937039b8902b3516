"""AsyncBuffer: device values become host values on a thread, and the loop that makes them never waits for a device.

`AsyncBuffer.put` runs on the caller's thread: it queues a copy and returns. The thread "endoscope-buffer" waits for
the copy, converts it and keeps the result. It is woken for many values together, and lives on when the buffer is reset:
beside a model that computes on every core, a thread that starts takes the loop up to 3 ms.
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

from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.threads import SingleThread

log = logging.getLogger("endoscope")

T = TypeVar("T")

_WAKE = 256  # values that may pile up before the thread is woken
_LOOK_S = 1.0  # how often a wait looks whether the thread still lives
_EXIT_S = 5.0  # how long the end of the program waits for a conversion that is under way


class BufferFailed(EndoscopeError, RuntimeError):
    """A value could not be converted; the cause is chained."""


class BufferClosed(EndoscopeError, RuntimeError):
    """The buffer was used after `AsyncBuffer.close`."""


class AsyncBuffer(Generic[T]):
    """Keeps ``convert(value)`` for every value that is put, in order.

    >>> losses = AsyncBuffer(float)
    >>> losses.put(torch.tensor(0.5, requires_grad=True))
    >>> losses.values()
    [0.5]

    About ``limit`` values wait at most; then `put` waits for the thread. When ``convert`` raises, the error is kept,
    later values are dropped, and `put`, `flush`, `values` and `close` raise `BufferFailed`, until `reset`. The thread
    starts when values have piled up or are asked for, and ends with `close`, or when nobody holds the buffer any more;
    so ``convert`` must not hold the buffer. A forked child starts empty, with a thread of its own; so does a copy.
    """

    def __init__(self, convert: Callable[[Any], T], *, limit: int = 1024) -> None:
        if limit < 1:
            raise ConfigError(f"limit={limit}; a buffer needs room for at least one value")
        self._convert = convert
        self._limit = limit
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._worker: _Worker[T] = _Worker(self._convert)
        self._channel: _Channel[T] = _Channel()
        weakref.finalize(self, self._worker.end).atexit = False

    def put(self, value: Any) -> None:
        """Queue a copy of ``value``, a tensor or any nesting of them."""
        channel = self._mine()
        if channel.error is not None or self._closed:
            self._refuse(channel)
        copy = snapshot(value)
        if len(channel.waiting) >= self._limit:
            self._worker.wait_for_room(channel, self._limit)
        channel.waiting.append(copy)
        if len(channel.waiting) >= min(_WAKE, (self._limit + 1) // 2) and not channel.woken:
            self._worker.ask(channel)

    def flush(self) -> None:
        """Return when everything put so far has been converted."""
        channel = self._mine()
        self._worker.reach(channel)
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
        self._channel = _Channel()
        channel.forgotten = True  # who waits for room in it goes on

    def close(self) -> None:
        """Convert what is queued and end the thread. The values stay; may be called twice."""
        if self._closed:
            return
        self._closed = True
        channel = self._mine()
        self._worker.reach(channel)
        self._worker.end()
        self._worker.thread.join()
        if channel.error is not None:
            self._refuse(channel)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(AsyncBuffer, limit=self._limit), (self._convert,)

    def _mine(self) -> _Channel[T]:
        if self._worker.pid != os.getpid():  # forked: the thread, and perhaps a held lock, stayed with the parent
            self._begin()
        return self._channel

    def _refuse(self, channel: _Channel[T]) -> None:
        if channel.error is None:
            raise BufferClosed("this buffer is closed; make a new one")
        channel.told = True
        raise BufferFailed(
            f"a value could not be brought to the host ({_named(channel.error)}); later ones were dropped; "
            "mend the cause, then reset the buffer"
        ) from channel.error


class _Channel(Generic[T]):
    """The values of a buffer between two resets."""

    def __init__(self) -> None:
        self.room = threading.Condition()  # of an RLock: a convert function, or a signal handler, may put as well
        self.blocked = 0
        self.waiting: deque[Snapshot] = deque()
        """A value goes when it is in ``kept``: when none waits, all are there."""
        self.kept: list[T] = []
        self.error: BaseException | None = None
        self.told = False
        self.woken = False
        self.converting = threading.RLock()
        self.forgotten = False


Signal = tuple[_Channel[T], threading.Event | None] | None
"""What to convert, and whom to tell then; None for the end."""


class _Worker(Generic[T]):
    """The thread of a buffer. It knows channels and not the buffer, so that a forgotten buffer can be collected."""

    def __init__(self, convert: Callable[[Any], T]) -> None:
        self.pid = os.getpid()
        self.thread = SingleThread(self._work, name="endoscope-buffer")
        self._convert = convert
        self._ended = False
        # A SimpleQueue may be put into from anywhere, also from a finalizer that runs in the middle of a put.
        self._signals: queue.SimpleQueue[Signal[T]] = queue.SimpleQueue()
        _workers.add(self)

    def ask(self, channel: _Channel[T], then: threading.Event | None = None) -> None:
        """Have what waits in a channel converted, and ``then`` set."""
        if self.thread.start() is None:
            channel.woken = True
            self._signals.put((channel, then))
            return
        self._convert_waiting(channel)  # there is no thread to be had
        if then is not None:
            then.set()

    def wait_for_room(self, channel: _Channel[T], limit: int) -> None:
        """Whoever converts never waits: nobody else would make room."""
        if self.thread.current or channel.converting._is_owned():  # type: ignore[attr-defined]
            return
        with channel.room:
            channel.blocked += 1
        try:
            while len(channel.waiting) >= limit and not (channel.forgotten or self._ended):
                self.ask(channel)
                with channel.room:
                    channel.room.wait_for(lambda: len(channel.waiting) < limit or channel.forgotten, _LOOK_S)
        finally:
            with channel.room:
                channel.blocked -= 1

    def reach(self, channel: _Channel[T]) -> None:
        """Have what was queued so far dealt with."""
        if self.thread.current:
            raise BufferFailed("a buffer's convert function must not wait for the buffer itself")
        if channel.waiting:
            done = threading.Event()
            self.ask(channel, done)
            while not done.wait(_LOOK_S) and self.thread.alive:
                pass

    def end(self) -> None:
        """Have the thread end without converting what still waits. Takes no lock: a finalizer calls it."""
        self._ended = True
        self._signals.put(None)

    def _work(self) -> None:
        while (signal := self._signals.get()) is not None:
            channel, then = signal
            channel.woken = False
            self._convert_waiting(channel)
            if then is not None:
                then.set()
            del signal, channel, then  # a channel that was forgotten goes now, and not with the next

    def _convert_waiting(self, channel: _Channel[T]) -> None:
        """Convert what is waiting now, and keep the first error. Never twice at once."""
        if channel.converting._is_owned():  # type: ignore[attr-defined]
            return  # a convert function has put
        with channel.converting:
            for _ in range(len(channel.waiting)):
                if self._ended or channel.forgotten:
                    break
                try:
                    if channel.error is None:
                        channel.kept.append(self._convert(channel.waiting[0].wait()))
                except BaseException as e:  # noqa: BLE001  (a thread that died would leave its callers waiting)
                    channel.error = e
                channel.waiting.popleft()
                if channel.blocked:
                    with channel.room:
                        channel.room.notify_all()


_workers: weakref.WeakSet[_Worker[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A daemon thread that comes back from C++ into a dying interpreter can bring the process down."""
    workers = [worker for worker in _workers if worker.pid == os.getpid()]
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.thread.join(_EXIT_S)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
