"""A page being written: two files that grow together, and are plain safetensors and JSON lines once closed.

Runs on the writer thread only. What cannot be written is told, or raised as `OSError`; what was there before stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from endoscope.pages import encoding, format, header

_NAME = re.compile(r"page_(\d{1,9})(?:_rank_(\d{1,9}))?\.(jsonl|safetensors|pkl)", re.ASCII)
_CATALOGUE = re.compile(r"catalogue(?:_rank_(\d{1,9}))?\.jsonl", re.ASCII)
_IOV_MAX = 512
_START_WRITEBACK = 8 << 20
"""Bytes after which the kernel is asked to begin writing, so that the sync at the end is short."""


def page_name(number: int, rank: int | None) -> str:
    """``page_3``, or ``page_3_rank_1`` where several processes write."""
    return f"page_{number}" if rank is None else f"page_{number}_rank_{rank}"


def catalogue_name(rank: int | None) -> str:
    return "catalogue.jsonl" if rank is None else f"catalogue_rank_{rank}.jsonl"


def parse_name(name: str) -> tuple[int, int | None, str] | None:
    """(page number, rank or None, suffix) of a page file's name; None for any other file. A catalogue is page -1."""
    if m := _NAME.fullmatch(name):
        return int(m[1]), int(m[2]) if m[2] else None, m[3]
    if m := _CATALOGUE.fullmatch(name):
        return -1, int(m[1]) if m[1] else None, "catalogue"
    return None


def order(parsed: tuple[int, int | None, str] | None) -> tuple[int, int]:
    """The order in which page files are read: by rank, then by number."""
    number, rank, _ = parsed or (0, None, "")
    return (-1 if rank is None else rank, number)


def write_all(fd: int, buffers: Sequence[Any]) -> int:
    """Write every buffer at the file's position, however many calls the kernel makes of it; returns the bytes."""
    total = sum(memoryview(b).nbytes for b in buffers)
    done = os.writev(fd, buffers[:_IOV_MAX])
    if done == total:
        return total
    views = [memoryview(b).cast("B") for b in buffers]
    while True:
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if not views:
            return total
        if done:
            views[0] = views[0][done:]
        done = os.writev(fd, views[:_IOV_MAX])


Held = tuple[encoding.Record, bytes, int]
"""A record that is not written yet, its line, and how many were dropped before it."""


class Page:
    """One open page; `append` records and `write` them, then `close`."""

    def __init__(self, folder: Path, number: int, rank: int | None, *, data_start: int) -> None:
        self.name = page_name(number, rank)
        self.folder = folder
        self.data_start = self._end = data_start
        self._planned = data_start  # where the next record begins when all that are held are written
        self._held: list[Held] = []
        self.records = self.dropped = 0
        self.size = 512  # the first and the closing line
        self.header_size = 512  # what the header holds besides the records' entries
        self._headed: list[tuple[str, header.Blocks, int]] = []
        self._synced = data_start
        self.indices: list[int] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._broken = False
        self._data = self._text = -1
        try:
            self._text = _create(folder / f"{self.name}.jsonl")  # first: an empty one is an unfinished page
            self._data = _create(folder / f"{self.name}.safetensors")
            first = format.sealed(
                {"endoscope_page": format.VERSION, "data": f"{self.name}.safetensors", "data_start": data_start}
            )
            self.line_end = write_all(self._text, [first])
            os.lseek(self._data, data_start, os.SEEK_SET)
        except OSError:
            self._unmake()
            raise

    def append(self, record: encoding.Record, dropped: int = 0) -> None:
        """Take one record, with how many were dropped before it; `write` writes it."""
        line = record.line(self._planned)
        self._held.append((record, line, dropped))
        self._planned += record.nbytes
        self.size += record.nbytes + len(line)

    def write(self) -> list[tuple[Exception, int]]:
        """Write what was appended, all at once; returns why a record is lost, and how many were dropped before it."""
        held, self._held = self._held, []
        lost: list[tuple[Exception, int]] = []
        if not held:
            return lost
        try:
            self._write(held)
        except Exception as e:  # noqa: BLE001  # an OSError, or no memory left to join the lines
            if self._broken:  # what could not be taken back is there
                whole = self._whole_lines([line for _, line, _ in held])
                self._account(held[:whole])
                lost = [(e, dropped) for _, _, dropped in held[whole:]]
            elif len(held) == 1:
                lost = [(e, held[0][2])]
            else:
                lost = self._write_one_by_one(held)
            self._planned = self._end
        return lost

    def _write_one_by_one(self, held: Sequence[Held]) -> list[tuple[Exception, int]]:
        """A full disk may have room for some of them."""
        lost: list[tuple[Exception, int]] = []
        for record, _, dropped in held:
            line = record.line(self._end)
            try:
                if self._broken:
                    raise OSError(errno.EIO, "the page cannot be cut back to its last whole record")
                self._write([(record, line, dropped)])
            except Exception as e:  # noqa: BLE001
                lost.append((e, dropped))
        return lost

    def _write(self, held: Sequence[Held]) -> None:
        """Tensors first, then their lines. A failure takes back what was written of them, and is raised."""
        buffers = [b for record, _, _ in held for b in record.buffers]
        try:
            if buffers:
                write_all(self._data, buffers)
            write_all(self._text, [b"".join(line for _, line, _ in held)])
        except BaseException:
            self._take_back()
            raise
        self._account(held)
        if self._end - self._synced >= _START_WRITEBACK:
            _begin_writeback(self._data, self._synced, self._end - self._synced)
            self._synced = self._end

    def _account(self, held: Sequence[Held]) -> None:
        for record, line, dropped in held:
            if record.blocks:
                self._headed.append((header.label(record.idx), record.blocks, self._end))
            self.indices += record.indices
            self.counts.append(len(record.indices))
            self._end += record.nbytes
            self.starts.append(self.line_end)
            self.line_end += len(line)
            self.ends.append(self.line_end)
            self.dropped += dropped
        self.records += len(held)

    def _whole_lines(self, lines: Sequence[bytes]) -> int:
        """How many of these lines the text holds behind the last record."""
        ends = itertools.accumulate(map(len, lines), initial=self.line_end)
        size = os.fstat(self._text).st_size
        return sum(end <= size for end in ends) - 1

    def _take_back(self) -> None:
        """After a failed write: cut both files back to the last whole record."""
        try:
            for fd, end in ((self._text, self.line_end), (self._data, self._end)):
                os.ftruncate(fd, end)
                os.lseek(fd, end, os.SEEK_SET)
        except OSError:
            self._broken = True  # a reader ignores the torn end; further records go to a new page

    @property
    def usable(self) -> bool:
        return not self._broken

    def close(self, *, dropped: int = 0) -> None:
        """Write the safetensors header and the closing line, and sync both files to the disk."""
        try:
            if not self._broken:
                if self._end == self.data_start:  # no tensor: the file must still be as long as its header
                    os.ftruncate(self._data, self.data_start)
                head = header.encode_header(self._headed, self.data_start)
                done = 0
                while done < len(head):
                    done += os.pwrite(self._data, head[done:], done)
                closing = {"records": self.records, "datapoints": len(self.indices), "bytes": self._end,
                           "header": xxhash.xxh3_64_hexdigest(head), "dropped": dropped}  # fmt: skip
                self.line_end += write_all(self._text, [format.sealed({"closed": closing})])
            os.fsync(self._data)
            os.fsync(self._text)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are; what was appended stays readable."""
        for fd in (self._data, self._text):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._data = self._text = -1

    def _unmake(self) -> None:
        """A page that could not be begun leaves nothing behind; files that others made are not touched."""
        for fd, suffix in ((self._data, "safetensors"), (self._text, "jsonl")):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / f"{self.name}.{suffix}")
        self.abandon()


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _no_writeback(fd: int, start: int, nbytes: int) -> None:
    """Elsewhere than on Linux the sync at the end does all the work."""


def _linux_writeback() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return _no_writeback
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int
    write_only = 2  # SYNC_FILE_RANGE_WRITE: start writing, wait for nothing; its failure costs only time
    return lambda fd, start, nbytes: call(fd, start, nbytes, write_only)


_begin_writeback = _linux_writeback() if sys.platform == "linux" else _no_writeback
