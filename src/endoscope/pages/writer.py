"""The page writer: a queue bounded in bytes and one thread, which hands the records to a sink; flush and close.

`PageWriter.put` only queues. The thread waits until some records are there and writes them together: in a running model
Python is dear the first time and cheap the second, and every call of the kernel makes the loop wait for the interpreter
lock. An error of the disk loses the record it met, is logged once and counted; it is never raised into the loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from endoscope.capturing.snapshot import Snapshot, weight
from endoscope.errors import PageError
from endoscope.pages.sink import Captured, PageSink
from endoscope.threads import SingleThread

log = logging.getLogger("endoscope")

OnFull = Literal["block", "drop"]

TOGETHER_BYTES = 1400 << 10
TOGETHER_SECONDS = 0.1
"""A record waits for others until they are so many bytes together, or so long. A flush waits for nothing. With fewer
bytes the thread is woken more often, and finds its caches taken each time; with more, the loop's next copies go to
memory that no cache holds."""

IDLE_SECONDS = 10.0
"""How often the thread looks when nothing comes: the collector may close the writer on it, just before it waits."""


@dataclass(frozen=True, slots=True)
class WriterCounts:
    """What became of the records given to a writer: ``written`` + ``dropped`` + ``lost`` + what is still queued."""

    written: int = 0
    dropped: int = 0
    lost: int = 0
    problem: str | None = field(default=None, compare=False)
    """The first error of the disk, if there was one."""

    def __add__(self, other: WriterCounts) -> WriterCounts:
        sums = (self.written + other.written, self.dropped + other.dropped, self.lost + other.lost)
        return WriterCounts(*sums, self.problem or other.problem)


class WriterClosed(PageError):
    """A record came after `PageWriter.close`."""


class _Flush:
    """A mark in the queue: everything before it has been dealt with."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.reached = threading.Event()


class PageWriter:
    """Writes records into one folder until `close`.

    >>> writer = PageWriter(SafetensorsSink(folder, page_size=100 << 20, rank=None), queue_bytes=256 << 20)
    >>> writer.put(17, {"stage4": snapshot(output)}, notes={})
    >>> writer.flush()          # True: everything so far is in the kernel's hands, and survives a kill
    """

    def __init__(self, sink: PageSink, *, queue_bytes: int, on_full: OnFull = "block") -> None:
        self._sink = sink
        self._limit = queue_bytes
        self._on_full = on_full
        self._queue: deque[Captured | _Flush | None] = deque()
        self._lock = threading.RLock()  # the collector may close this writer on its own thread, wherever that is
        self._arrived, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._pending = 0  # bytes that were put and are not written
        self._queued = 0  # those of them that the thread has not taken out
        self._hurried = False
        self._idle = False  # the thread wants to be told of a record; else it looks by itself every TOGETHER_SECONDS
        self._enough = max(1, min(TOGETHER_BYTES, queue_bytes // 4))  # bytes that wait for no others
        self._dropped_since = 0
        self._written = self._dropped = self._lost = 0
        self._thread = SingleThread(self._work, name="endoscope-writer")
        self._pid = os.getpid()
        self._closed = False
        self._problem: str | None = None

    @property
    def counts(self) -> WriterCounts:
        return WriterCounts(self._written, self._dropped, self._lost, self._problem)

    @property
    def foreign(self) -> bool:
        """True in a forked child: the files and the thread belong to the parent."""
        return os.getpid() != self._pid

    @property
    def putting(self) -> bool:
        """Whether this thread is in the middle of a `put`: who asks is a signal handler, for whom it cannot end."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def start(self) -> None:
        """Start the thread now. The first `put` does it otherwise, and beside a model that computes on every core that
        takes the loop 1 to 3 ms."""
        if not self._closed:
            self._thread.start()  # a problem shows with the first record

    def put(self, idx: int | list[int], outputs: Mapping[str, Snapshot], notes: Mapping[str, Any]) -> bool:
        """Queue one record; False when it was dropped. Waits while the queue is full, unless ``on_full="drop"``."""
        if os.getpid() != self._pid:
            return False
        size = weight(outputs) + (weight(notes) if notes else 0)
        with self._lock:
            if self._closed:
                raise WriterClosed("this page writer is closed")
            # A record larger than the whole queue passes alone: refusing it would lose it, waiting would never end.
            while self._pending and self._pending + size > self._limit:
                self._hurry()
                if self._on_full == "drop":
                    self._dropped += 1
                    self._dropped_since += 1
                    return False
                self._room.wait()
                if self._closed:  # while this record waited
                    raise WriterClosed("this page writer is closed")
            if not self._thread.started and (problem := self._thread.start()) is not None:
                self._lost += 1
                self._tell(problem)
                return False
            if self._closed:  # by a signal handler, in the middle of this; perhaps before there was a thread
                self._queue_the_end()  # type: ignore[unreachable]
                raise WriterClosed("this page writer is closed")
            dropped, self._dropped_since = self._dropped_since, 0
            self._queue.append(Captured(idx, outputs, notes, size, dropped))
            self._pending += size
            self._queued += size
            if self._queued >= self._enough:
                self._hurry()
            elif self._idle:
                self._arrived.notify()
        return True

    def _hurry(self) -> None:
        """Have the thread write at once. The lock is held."""
        self._hurried = True
        self._arrived.notify()

    def flush(self) -> bool:
        """Return when everything put so far has been handed to the kernel; False when some of it was lost.

        Also False in a signal handler that has interrupted `put`: the thread cannot go on before that does.
        """
        return self._reach(self._sink.flush) and self._lost == 0 and self._sink.unsaved == 0

    def close(self) -> None:
        """Write what is queued, close the page, sync it, end the thread. May be called twice."""
        if self.foreign:
            return
        reentered = self.putting
        with self._lock:
            if not self._closed and self._thread.started:
                self._queue_the_end()
            self._closed = True
        # The collector runs anywhere, also on the writer thread, and a signal in the middle of `put`: the rest follows.
        if not reentered and not self._thread.current:
            self._thread.join()

    def _queue_the_end(self) -> None:
        """Nothing comes after it. The lock is held."""
        self._queue += (_Flush(lambda: self._sink.close(dropped=self._dropped_since)), None)
        self._hurry()

    def _reach(self, action: Callable[[], None]) -> bool:
        """Have ``action`` done after everything that was put so far; False where it cannot be waited for."""
        if self.foreign or self.putting:
            return False
        with self._lock:
            if not self._thread.started:
                return True
            mark = None if self._closed else _Flush(action)
            if mark is not None:
                self._queue.append(mark)
                self._hurry()
        if mark is not None:
            mark.reached.wait()
        else:
            self._thread.join()  # another thread is closing: when that is done, everything is written
        return True

    def _work(self) -> None:
        while self._write(self._taken_out()):
            pass
        self._lost += self._sink.unsaved + sum(isinstance(late, Captured) for late in self._queue)
        self._written -= self._sink.unsaved

    def _taken_out(self) -> deque[Captured | _Flush | None]:
        """Wait for records, and take out as many as are written together."""
        items: deque[Captured | _Flush | None] = deque()
        size = 0
        with self._lock:
            while not self._queue or not self._hurried:
                self._arrived.wait_for(lambda: self._queue and self._hurried, TOGETHER_SECONDS)
                if self._queue:
                    break
                if self._closed:  # while this thread was being started, and knew nothing of it
                    return deque([None])
                self._idle = True
                self._arrived.wait_for(lambda: self._queue, IDLE_SECONDS)
                self._idle = False
            while self._queue and size < self._enough:
                item = self._queue.popleft()
                items.append(item)
                size += item.nbytes if isinstance(item, Captured) else 0
            self._queued -= size
            self._hurried = bool(self._queue)
        return items

    def _write(self, items: deque[Captured | _Flush | None]) -> bool:
        """Deal with the items, which are let go of one by one; False after the last one of all."""
        taken = size = 0
        last = False
        while items:
            item = items.popleft()
            if isinstance(item, Captured):
                size += item.nbytes
                try:
                    self._sink.append(item)
                    taken += 1
                except BaseException as e:  # noqa: BLE001  # whatever it is, the thread goes on and the user is told
                    self._failed(e, item.dropped)
            elif item is not None:
                self._hand_over(taken)
                taken = 0
                try:
                    item.action()
                except BaseException as e:  # noqa: BLE001
                    self._tell(e)
                item.reached.set()
            else:
                last = True
        self._hand_over(taken)
        with self._lock:
            self._pending -= size
            self._room.notify_all()
        return not last

    def _hand_over(self, taken: int) -> None:
        """Have the sink give what it was given to the kernel: so many records."""
        try:
            lost = self._sink.write()
        except BaseException as e:  # noqa: BLE001
            lost = [(e, 0)] * taken
        self._written += taken - len(lost)
        for error, dropped in lost:
            self._failed(error, dropped)

    def _failed(self, error: BaseException, dropped: int) -> None:
        """A record is lost, but not the number of those that were dropped before it."""
        self._lost += 1
        with self._lock:
            self._dropped_since += dropped
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self._problem is None:
            self._problem = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):  # of a user's log handler
                log.warning("capture cannot be written (%s); training goes on, later records are tried", self._problem)
