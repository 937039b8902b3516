"""The page writer: a queue bounded in bytes, one thread, rotation at the page size, flush and close.

`PageWriter.put` encodes on the calling thread when the bytes are there and only queues; the thread does nothing but
place records in pages and call the kernel. An error of the disk loses the record it met, is logged once and counted;
it is never raised into the caller's loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from endoscope.errors import ConfigError, FolderInUseError, PageError
from endoscope.pages import catalogue, header, page
from endoscope.pages.encoding import Record, encode_record
from endoscope.tensors import Snapshot, nbytes

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


class WriterClosed(PageError):
    """A record came after `PageWriter.close`."""


class PageSink(Protocol):
    """Where records go in the writer thread: safetensors pages, or the seeds' pickle pages."""

    unsaved: int
    """Records that were appended and are not in the kernel's hands yet."""

    def append(self, record: Record | Unencoded, *, dropped: int) -> None: ...
    def flush(self) -> None: ...
    def close(self, *, dropped: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Unencoded:
    """A record whose bytes a device has not delivered yet, or that a pickle page takes as it is."""

    idx: int | list[int]
    outputs: Mapping[str, Snapshot]
    notes: Mapping[str, Any]
    nbytes: int

    def encode(self) -> Record:
        return encode_record(self.idx, {k: s.wait() for k, s in self.outputs.items()}, self.notes)


class SafetensorsSink:
    """Records into ``page_N.safetensors`` and ``page_N.jsonl``, a new pair whenever the page size would be passed."""

    unsaved = 0  # every append hands its bytes to the kernel

    def __init__(self, folder: Path, *, page_size: int, rank: int | None, first_page: int = 0) -> None:
        self.folder = folder
        self.page_size = page_size
        self.rank = rank
        self._page: page.Page | None = None
        self._next = first_page
        self._room = 16 << 10
        self._catalogue = folder / page.catalogue_name(rank)

    def append(self, record: Record | Unencoded, *, dropped: int) -> None:
        if isinstance(record, Unencoded):
            record = record.encode()
        if dropped:
            record.body += b',"dropped":%d' % dropped
        entries = header.header_bytes(record, header.label(record.idx))
        size = record.nbytes + len(record.body) + 128
        p = self._page
        if p is not None:
            no_room = p.header_size + entries > p.data_start
            if no_room or not p.usable or p.data_start + p.size + size > self.page_size:
                self._close_page(dropped=0)
                p = None
                self._room *= 4 if no_room else 1
        if p is None:
            # The header is written last and its room reserved first: for as many records like this one as a page
            # holds, but for small records no more than is sure to be used; it grows with the pages that use it up.
            expected = entries * self.page_size // (size + entries)
            room = 512 + max(entries, min(expected, max(self._room, record.nbytes)))
            number, self._next = self._next, self._next + 1
            p = self._page = page.Page(self.folder, number, self.rank, data_start=-(-room // 64) * 64)
        p.append(record)
        p.header_size += entries
        p.dropped += dropped

    def flush(self) -> None:
        """Nothing to do."""

    def _close_page(self, *, dropped: int) -> None:
        p, self._page = self._page, None
        if p is None:
            return
        p.close(dropped=dropped)
        page.sync_folder(self.folder)
        info = catalogue.PageInfo(p.name, dropped + p.dropped, data_start=p.data_start)
        with open(self._catalogue, "ab") as f:
            f.write(catalogue.encode(catalogue.of_page(info, p.indices, p.counts, p.starts, p.ends)))

    def close(self, *, dropped: int) -> None:
        """Close the page, and put one line for all pages in place of the catalogue's many."""
        self._close_page(dropped=dropped)
        lines = catalogue.decode_all(self._catalogue.read_bytes().split(b"\n")) if self._catalogue.exists() else []
        if len(lines) > 1:
            part = self._catalogue.with_name(f".{self._catalogue.name}.part")
            part.write_bytes(b"".join(map(catalogue.encode, catalogue.merged(lines))))
            os.replace(part, self._catalogue)


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
        if self._encode and all(s.ready for s in outputs.values()):
            item = encode_record(idx, {k: s.value for k, s in outputs.items()}, notes)
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
                self._thread = threading.Thread(target=self._work, name="endoscope-writer", daemon=True)
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


# ---------------------------------------------------------------- folders
def page_files(folder: Path) -> list[Path]:
    """Every file in ``folder`` that belongs to pages, of any rank and format."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(p for p in folder.iterdir() if page.parse_name(p.name) is not None)
    return []


def _ours(path: Path, rank: int | None, world_size: int) -> bool:
    """Whether this process answers for a file: its own rank's; rank 0 also for those of ranks that are no more."""
    parsed = page.parse_name(path.name)
    assert parsed is not None
    of = parsed[1]
    return of == rank or (rank in (None, 0) and (of is None or rank is None or of >= world_size))


def prepare_folder(folder: Path, *, rank: int | None, world_size: int = 1, overwrite: bool = False) -> None:
    """Make ``folder`` ready for new pages: it exists, can be written, and holds no pages of an earlier capture."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"cannot make the folder {str(folder)!r} for pages: {e.strerror}") from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write into {str(folder)!r}; choose another output_dir")
    old = [p for p in page_files(folder) if _ours(p, rank, world_size)]
    if old and not overwrite:
        raise FolderInUseError(
            f"{str(folder)!r} already holds pages ({old[0].name}, ...); "
            "choose another folder, or pass overwrite=True to replace them"
        )
    for p in sorted(old, key=lambda p: not p.name.startswith("catalogue")):
        p.unlink()


def move_pages(source: Path, target: Path, *, rank: int | None) -> None:
    """Move this rank's closed pages into ``target``, also from another file system.

    A page's lines come after its tensors, and the catalogue last: what a reader finds there is whole at any moment.
    """
    order = {"safetensors": 0, "pkl": 0, "jsonl": 1, "catalogue": 2}
    moving = sorted(
        (order[parsed[2]], p) for p in page_files(source) if (parsed := page.parse_name(p.name)) and parsed[1] == rank
    )
    there: list[Path] = []
    try:
        for _, p in moving:
            _link_or_copy(p, target / p.name)
            there.append(target / p.name)
    except OSError:
        for copy in there:  # all of it stays where it was
            copy.unlink()
        raise
    page.sync_folder(target)
    for _, p in reversed(moving):
        p.unlink()


def _link_or_copy(source: Path, target: Path) -> None:
    """Have ``source`` under ``target`` as well: at every moment one of the two folders holds all pages."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(source, part)
            with open(part, "rb+") as f:
                os.fsync(f.fileno())
            os.rename(part, target)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
