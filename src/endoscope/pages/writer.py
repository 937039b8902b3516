"""The page writer: a queue bounded in bytes, and one thread that passes the records to a sink.

`PageWriter.put` only queues. The thread writes several records together: each wake-up and each system call makes the
loop wait for the interpreter lock. An error loses the record it met, is logged once and counted; it is never raised
into the loop. Not for signal handlers: set a flag there and call the debugger afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from endoscope.capturing.snapshot import Snapshot, weight
from endoscope.errors import PageError
from endoscope.pages.page import Lost
from endoscope.pages.sink import Captured, PageSink

log = logging.getLogger("endoscope")

OnFull = Literal["block", "drop"]

TOGETHER_BYTES = 1400 << 10
TOGETHER_SECONDS = 0.1
"""A record waits until there are so many bytes together, or for so long; a flush ends the wait."""


@dataclass(frozen=True, slots=True)
class WriterCounts:
    """What became of the records given to a writer: ``written`` + ``dropped`` + ``lost`` + what is still queued."""

    written: int = 0
    dropped: int = 0
    lost: int = 0
    problem: str | None = field(default=None, compare=False)
    """The first error, if there was one."""
    failures: Counter[str] = field(default_factory=Counter, compare=False)
    """How many values of each debugger could not be stored; their records say why."""

    def __add__(self, other: WriterCounts) -> WriterCounts:
        sums = (self.written + other.written, self.dropped + other.dropped, self.lost + other.lost)
        return WriterCounts(*sums, self.problem or other.problem, self.failures + other.failures)


class WriterClosed(PageError):
    """A record came after `PageWriter.close`."""


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
        self._enough = max(1, min(TOGETHER_BYTES, queue_bytes // 4))  # bytes that do not wait for others
        self._queue: deque[Captured | threading.Event] = deque()  # an event is set when all before it is written
        self._queued = 0  # bytes in the queue
        self._writing = 0  # bytes that the thread has taken out and not written yet
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)  # the queue is not empty
        self._due = threading.Condition(self._lock)  # the queue must be written now
        self._room = threading.Condition(self._lock)  # the queue has become shorter
        self._is_due = False
        self._closed = False
        self._written = self._dropped = self._lost = 0
        self._dropped_before = 0  # records dropped since the last one that was queued
        self._problem: str | None = None
        self._failures: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._pid = os.getpid()

    @property
    def counts(self) -> WriterCounts:
        return WriterCounts(self._written, self._dropped, self._lost, self._problem, self._failures)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """True in a forked child: the files and the thread belong to the parent."""
        return os.getpid() != self._pid

    # ---- for the caller's threads
    def start(self) -> None:
        """Start the thread now. Otherwise the first `put` does, which makes a busy loop wait 1 to 3 ms."""
        with self._lock:
            self._is_running()

    def put(self, idx: int | list[int], outputs: Mapping[str, Snapshot], notes: Mapping[str, Any]) -> bool:
        """Queue one record; False if it was dropped or lost. Waits while the queue is full, unless it may drop."""
        if self.foreign:
            return False
        size = weight(outputs) + (weight(notes) if notes else 0)
        with self._lock:
            if not self._has_room(size):
                self._dropped += 1
                self._dropped_before += 1
                return False
            if self._closed:
                raise WriterClosed("this page writer is closed")
            if not self._is_running():
                self._lost += 1
                return False
            dropped, self._dropped_before = self._dropped_before, 0
            self._queue.append(Captured(idx, outputs, notes, size, dropped))
            self._queued += size
            self._arrived.notify()
            if self._queued >= self._enough:
                self._write_now()
        return True

    def flush(self) -> bool:
        """Return when everything put so far has been passed to the kernel; False if some of it was lost."""
        if self.foreign:
            return False
        reached = self._ended
        with self._lock:
            if self._thread is None or not self._is_running():
                return self._lost == 0
            if not self._closed:  # else another thread is closing, which writes everything
                reached = threading.Event()
                self._queue.append(reached)
                self._write_now()
        reached.wait()
        return self._lost == 0 and self._sink.unsaved == 0

    def close(self) -> None:
        """Write what is queued, close the page, sync it, end the thread. May be called twice."""
        if self.foreign:
            return
        if threading.current_thread() is self._thread:  # called by the collector, which may run on any thread
            self._closed = True
            return
        with self._lock:
            self._closed = True
            if self._thread is None or not self._is_running():
                return
            self._write_now()
            self._room.notify_all()
        self._ended.wait()  # not only join: after Ctrl-C in a join, Python takes the thread for ended
        self._thread.join()

    # ---- with the lock held
    def _has_room(self, size: int) -> bool:
        """Wait for room in the queue, unless it may drop. A record larger than the queue passes when it is empty."""
        while not self._closed and (full := self._queued + self._writing) and full + size > self._limit:
            self._write_now()
            if self._on_full == "drop":
                return False
            self._room.wait()
        return True

    def _is_running(self) -> bool:
        """Start the thread unless it runs. After an interrupted start, a late thread finds itself replaced and ends."""
        if self._thread is not None and (self._thread.is_alive() or self._ended.is_set()):
            return True
        self._thread = threading.Thread(target=self._work, name="endoscope-writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as e:  # the system gives no more threads
            self._thread = None
            self._report(e)
        return self._thread is not None

    def _write_now(self) -> None:
        self._is_due = True
        self._arrived.notify()
        self._due.notify()

    # ---- on the writer thread
    def _work(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return
        while batch := self._next_batch():
            self._write(batch)
        self._finish(partial(self._sink.close, dropped=self._dropped_before))
        self._hand_over(0)
        self._lost += self._sink.unsaved
        self._written -= self._sink.unsaved
        self._ended.set()

    def _next_batch(self) -> deque[Captured | threading.Event]:
        """Wait for records, and take out as many as are written together; none when the writer is closed."""
        batch: deque[Captured | threading.Event] = deque()
        with self._lock:
            while not self._queue and not self._closed:
                self._arrived.wait()
            self._due.wait_for(lambda: self._is_due or self._closed, TOGETHER_SECONDS)
            while self._queue and self._writing < self._enough:
                item = self._queue.popleft()
                batch.append(item)
                self._writing += item.nbytes if isinstance(item, Captured) else 0
            self._queued = max(0, self._queued - self._writing)
            self._is_due = bool(self._queue)
        return batch

    def _write(self, batch: deque[Captured | threading.Event]) -> None:
        """Write a batch. Each record is released as soon as the sink has taken it."""
        appended = 0
        while batch:
            item = batch.popleft()
            if isinstance(item, threading.Event):
                self._hand_over(appended)
                appended = 0
                self._finish(self._sink.flush)
                item.set()
            elif error := _error_of(partial(self._append, item)):
                self._lose(error, item.dropped)
            else:
                appended += 1
        self._hand_over(appended)
        with self._lock:
            self._writing = 0
            self._room.notify_all()

    def _hand_over(self, appended: int) -> None:
        """Have the sink pass its records to the kernel, and count them."""
        lost: list[Lost] = []
        if error := _error_of(lambda: lost.extend(self._sink.write())):
            lost = [Lost(error)] * appended
        self._written += appended - len(lost)
        for reason, dropped in lost:
            self._lose(reason, dropped)

    def _finish(self, action: Callable[[], None]) -> None:
        if error := _error_of(action):
            self._report(error)

    def _lose(self, error: BaseException, dropped: int) -> None:
        """A record is lost, but not the number of those that were dropped before it."""
        self._lost += 1
        with self._lock:
            self._dropped_before += dropped
        self._report(error)

    def _append(self, item: Captured) -> None:
        """Have the sink take a record. A value that cannot be stored is counted, and logged once per debugger."""
        for name, message in self._sink.append(item).items():
            self._failures[name] += 1
            if self._failures[name] == 1:
                text = "a value of debugger %r %s; training goes on, the notes of the record say so"
                _error_of(partial(log.warning, text, name, message))

    def _report(self, error: BaseException) -> None:
        if self._problem is None:
            self._problem = f"{type(error).__name__}: {error}"
            message = "capture cannot be written (%s); training goes on, later records are tried"
            _error_of(partial(log.warning, message, self._problem))  # a log handler may raise


def _error_of(action: Callable[[], object]) -> BaseException | None:
    """Run code that may raise anything: a device, a key of the user's, a log handler. The thread must go on."""
    try:
        action()
    except BaseException as e:  # noqa: BLE001
        return e
    return None
