"""A page being written: two files that grow together, and are plain safetensors and JSON lines once closed.

Runs on the writer thread. A record that cannot be written is reported as `Lost`; the records before it stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from endoscope.pages import format, header
from endoscope.pages.catalogue import Index, PageInfo, PageLines
from endoscope.pages.encoding import Entry, Record
from endoscope.pages.names import page_name

_IOV_MAX = 512
_START_WRITEBACK = 8 << 20
"""Bytes after which the kernel is asked to begin writing: the sync of a 96 MB page then takes 16 ms instead of 45."""


class Lost(NamedTuple):
    """Why a record was lost, and how many were dropped before it."""

    error: BaseException
    dropped: int = 0


class _Pending(NamedTuple):
    """A record that is not written yet."""

    record: Record
    line: bytes
    dropped: int


class Page:
    """One open page: `append` records, `write` them, then `close`."""

    def __init__(self, folder: Path, number: int, rank: int | None, *, data_start: int) -> None:
        self.name = page_name(number, rank)
        self.folder = folder
        self.data_start = self._end = data_start
        self.size = 512  # bytes of the tensors and lines, with room for the first and the closing line
        self.header_size = 512  # bytes of the header
        self.usable = True
        """False if a torn end could not be cut off: further records must go to a new page."""
        self._pending: list[_Pending] = []
        self._pending_end = data_start  # the end of the tensors when all pending records are written
        self._headers: list[tuple[str, Sequence[Entry], int]] = []
        self._lines = PageLines()
        self._dropped = 0
        self._synced = data_start
        self._data = self._text = -1
        first = {"endoscope_page": format.VERSION, "data": f"{self.name}.safetensors", "data_start": data_start}
        line = format.sealed(first)
        try:
            self._text = _create(folder / f"{self.name}.jsonl")  # first: an empty one is an unfinished page
            self._data = _create(folder / f"{self.name}.safetensors")
            write_all(self._text, [line])
            os.lseek(self._data, data_start, os.SEEK_SET)
        except OSError:
            self._remove()
            raise
        self._line_end = len(line)

    # ---- records
    def append(self, record: Record, dropped: int = 0) -> None:
        """Take one record, with how many were dropped before it; `write` writes it."""
        line = record.line(self._pending_end)
        self._pending.append(_Pending(record, line, dropped))
        self._pending_end += record.nbytes
        self.size += record.nbytes + len(line)

    def write(self) -> list[Lost]:
        """Write all pending records; returns those that are lost."""
        pending, self._pending = self._pending, []
        error = self._try_to_write(pending) if pending else None
        if error is None:
            return []
        lost = self._rescue(pending, error)
        self._pending_end = self._end
        return lost

    def _rescue(self, pending: Sequence[_Pending], error: Exception) -> list[Lost]:
        """After a failed write: write the records one by one, because a full disk may have room for some of them."""
        if not self.usable:
            complete = self._count_complete_lines(pending)
            self._account(pending[:complete])
            return [Lost(error, item.dropped) for item in pending[complete:]]
        if len(pending) == 1:
            return [Lost(error, pending[0].dropped)]
        lost = []
        for record, _, dropped in pending:
            failure = self._try_to_write([_Pending(record, record.line(self._end), dropped)])
            if failure is not None:
                lost.append(Lost(failure, dropped))
        return lost

    def _try_to_write(self, pending: Sequence[_Pending]) -> Exception | None:
        """Write tensors first, then their lines. A failure is returned, and leaves nothing of them in the files."""
        if not self.usable:
            return OSError(errno.EIO, "the page cannot be cut back to its last complete record")
        try:
            write_all(self._data, itertools.chain.from_iterable(item.record.buffers for item in pending))
            write_all(self._text, [b"".join(item.line for item in pending)])
        except (OSError, MemoryError) as e:
            self._cut_back()
            return e
        self._account(pending)
        if self._end - self._synced >= _START_WRITEBACK:
            _begin_writeback(self._data, self._synced, self._end - self._synced)
            self._synced = self._end
        return None

    def _account(self, written: Sequence[_Pending]) -> None:
        for record, line, dropped in written:
            self._headers.append((header.record_label(record.idx), record.entries, self._end))
            self._lines.add(record.indices, self._line_end, self._line_end + len(line))
            self._end += record.nbytes
            self._line_end += len(line)
            self._dropped += dropped

    def _cut_back(self) -> None:
        """Cut both files back to the last complete record. If that fails, readers ignore the torn end."""
        try:
            for fd, end in ((self._text, self._line_end), (self._data, self._end)):
                os.ftruncate(fd, end)
                os.lseek(fd, end, os.SEEK_SET)
        except OSError:
            self.usable = False

    def _count_complete_lines(self, pending: Sequence[_Pending]) -> int:
        """How many of these lines the text holds, where it could not be cut back."""
        ends = itertools.accumulate((len(item.line) for item in pending), initial=self._line_end)
        size = os.fstat(self._text).st_size
        return sum(end <= size for end in ends) - 1

    # ---- the end
    def close(self, *, dropped: int = 0) -> None:
        """Write the safetensors header and the closing line, and sync both files to the disk."""
        try:
            if self.usable:
                if self._end == self.data_start:  # no tensor: the file must still be as long as its header
                    os.ftruncate(self._data, self.data_start)
                head = header.encode_header(self._headers, self.data_start)
                done = 0
                while done < len(head):
                    done += os.pwrite(self._data, head[done:], done)
                closing = {"records": len(self._lines), "datapoints": len(self._lines.indices), "bytes": self._end,
                           "header": xxhash.xxh3_64_hexdigest(head), "dropped": dropped}  # fmt: skip
                write_all(self._text, [format.sealed({"closed": closing})])
            os.fsync(self._data)
            os.fsync(self._text)
        finally:
            self._close_files()

    def index(self, *, dropped: int) -> Index:
        """The catalogue's entry; ``dropped`` counts records dropped after the last one here."""
        return self._lines.index(PageInfo(self.name, self._dropped + dropped, data_start=self.data_start))

    def _close_files(self) -> None:
        for fd in (self._data, self._text):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._data = self._text = -1

    def _remove(self) -> None:
        """Remove a page that could not be begun; files of others are not touched."""
        for fd, suffix in ((self._data, "safetensors"), (self._text, "jsonl")):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / f"{self.name}.{suffix}")
        self._close_files()


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def write_all(fd: int, buffers: Iterable[Any]) -> None:
    """Write every buffer at the file's position, in as many calls as the kernel needs."""
    views = deque(memoryview(b).cast("B") for b in buffers)
    while views:
        written = os.writev(fd, list(itertools.islice(views, _IOV_MAX)))
        while views and written >= len(views[0]):
            written -= len(views.popleft())
        if written:
            views[0] = views[0][written:]


def _linux_writeback() -> Any:
    """A call that asks the kernel to begin writing a range of a file; it does nothing on other systems."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    if call is None:
        return lambda fd, start, nbytes: None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    write_only = 2  # SYNC_FILE_RANGE_WRITE: start writing, do not wait; a failure costs only time
    return lambda fd, start, nbytes: call(fd, start, nbytes, write_only)


_begin_writeback = _linux_writeback()
