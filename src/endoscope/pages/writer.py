"""The page writer: a queue bounded in bytes and one thread, which hands each record to a sink; flush and close.

`PageWriter.put` encodes on the calling thread when the bytes are there and only queues; the thread does nothing but
place records in pages and call the kernel. An error of the disk loses the record it met, is logged once and counted;
it is never raised into the caller's loop.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from endoscope.errors import PageError
from endoscope.pages.encoding import Record, encode_record
from endoscope.pages.sink import PageSink, Unencoded
from endoscope.randomness import QuietThread
from endoscope.tensors import Snapshot, nbytes, ready_values

log = logging.getLogger("endoscope")

OnFull = Literal["block", "drop"]


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


@dataclass(slots=True)
class _Queued:
    """A record in the queue: its size there, and how many were dropped before it."""

    record: Record | Unencoded
    size: int
    dropped: int


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

    def __init__(self, sink: PageSink, *, queue_bytes: int, on_full: OnFull = "block", encode: bool = True) -> None:
        self._sink = sink
        self._limit = queue_bytes
        self._on_full = on_full
        self._encode = encode
        self._queue: queue.SimpleQueue[_Queued | _Flush | None] = queue.SimpleQueue()
        self._lock = threading.Condition(threading.Lock())
        self._pending = 0
        self._waiting = 0
        self._dropped_since = 0
        self._written = self._dropped = self._lost = 0
        self._thread: threading.Thread | None = None
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

    def put(self, idx: int | list[int], outputs: Mapping[str, Snapshot], notes: Mapping[str, Any]) -> bool:
        """Queue one record; False when it was dropped. Waits while the queue is full, unless ``on_full="drop"``."""
        if self.foreign:
            return False
        item: Record | Unencoded
        values = ready_values(outputs) if self._encode else None
        if values is not None:
            item = encode_record(idx, values, notes)
            size = item.nbytes + len(item.body)
        else:
            size = sum(nbytes(s.value) for s in outputs.values()) + 1024
            item = Unencoded(idx, outputs, notes, size)
        with self._lock:
            if self._closed:
                raise WriterClosed("this page writer is closed")
            # A record larger than the whole queue passes alone: refusing it would lose it, waiting would never end.
            while self._pending and self._pending + size > self._limit:
                if self._on_full == "drop":
                    self._dropped += 1
                    self._dropped_since += 1
                    return False
                self._waiting += 1
                self._lock.wait()
                self._waiting -= 1
                if self._closed:  # while this record waited
                    raise WriterClosed("this page writer is closed")
            self._pending += size
            dropped, self._dropped_since = self._dropped_since, 0
            if self._thread is None:
                self._thread = QuietThread(target=self._work, name="endoscope-writer", daemon=True)
                self._thread.start()
            self._queue.put(_Queued(item, size, dropped))
        return True

    def flush(self) -> bool:
        """Return when everything put so far has been handed to the kernel; False when some of it was lost."""
        self._reach(self._sink.flush)
        return self._lost == 0 and self._sink.unsaved == 0

    def close(self) -> None:
        """Write what is queued, close the page, sync it, end the thread. May be called twice."""
        if self.foreign:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread is None:
            return
        self._queue.put(_Flush(lambda: self._sink.close(dropped=self._dropped_since)))
        self._queue.put(None)
        if threading.current_thread() is self._thread:  # the collector can run anywhere, here too: the rest follows
            return
        self._thread.join()
        self._lost += self._sink.unsaved
        self._written -= self._sink.unsaved

    def _reach(self, action: Callable[[], None]) -> None:
        if self.foreign:
            return
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            mark = None if self._closed else _Flush(action)
            if mark is not None:
                self._queue.put(mark)
        if mark is not None:
            mark.reached.wait()
        else:
            thread.join()  # another thread is closing: when that is done, everything is written

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._deal_with(item)
            except Exception as e:  # noqa: BLE001  # whatever it is, the thread goes on and the user is told
                self._failed(e, item)
            self._finish(item)
            del item  # the bytes must not outlive their turn while the thread waits for the next

    def _deal_with(self, item: _Queued | _Flush) -> None:
        if isinstance(item, _Flush):
            item.action()
        else:
            self._sink.append(item.record, dropped=item.dropped)
            self._written += 1

    def _failed(self, error: Exception, item: _Queued | _Flush) -> None:
        if isinstance(item, _Queued):
            self._lost += 1
            with self._lock:
                self._dropped_since += item.dropped
        if self._problem is None:
            self._problem = f"{type(error).__name__}: {error}"
            log.warning("capture cannot be written (%s); training goes on, later records are tried", self._problem)

    def _finish(self, item: _Queued | _Flush) -> None:
        if isinstance(item, _Flush):
            item.reached.set()
            return
        with self._lock:
            self._pending -= item.size
            if self._waiting:
                self._lock.notify_all()
