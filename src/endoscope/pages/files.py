"""Opening page files: read-only, never through a link, every length checked before memory is taken for it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.errors import PageFormatError
from endoscope.pages import format
from endoscope.pages.names import parse_name

FIRST_LINE = 512
"""An upper bound of the first line's bytes."""
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HUGE = 1 << 30  # bytes of one read above which the disk must really hold them


@dataclass(frozen=True, slots=True)
class Listing:
    """The names in a folder of pages, in the order in which the pages were written."""

    pages: dict[str, None]
    catalogues: list[str]
    pickles: list[str]


def list_folder(folder: str) -> Listing:
    return sort_names(os.listdir(folder))


def sort_names(names: Iterable[str]) -> Listing:
    """The names of page files among ``names``, in reading order."""
    listing = Listing({}, [], [])
    parsed = {name: parts for name in names if (parts := parse_name(name)) is not None}
    for name in sorted(parsed, key=lambda name: parsed[name].order):
        if parsed[name].kind == "catalogue":
            listing.catalogues.append(name)
        elif parsed[name].kind == "pkl":
            listing.pickles.append(name)
        else:
            listing.pages[name.rpartition(".")[0]] = None
    return listing


class NotOpenedError(PageFormatError):
    """A file exists and cannot be opened now."""


def open_file(folder: str, name: str) -> int:
    """Open a regular file for reading; a link, a pipe or a device in its place is refused."""
    try:
        fd = os.open(f"{folder}/{name}", _SAFELY)
    except FileNotFoundError:
        raise PageFormatError(f"{name} is missing") from None
    except OSError as e:
        raise NotOpenedError(f"{name} cannot be opened: {e.strerror}; links are not followed") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PageFormatError(f"{name} is not a regular file")
    return fd


def read_at(fd: int, start: int, nbytes: int) -> np.ndarray[Any, Any]:
    """``nbytes`` at ``start`` into fresh memory; raises when the file is shorter than that."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    status = os.fstat(fd)
    if start + nbytes > status.st_size:
        raise PageFormatError(f"file ends before byte {start + nbytes}")
    if nbytes > _HUGE and nbytes > 64 * status.st_blocks * 512:
        raise PageFormatError(f"{nbytes} bytes in a file that is nearly all hole")
    try:
        data = np.empty(nbytes, np.uint8)
    except MemoryError:
        raise PageFormatError(f"no memory for {nbytes} bytes") from None
    view, done = data.data, 0
    while done < nbytes:
        count = os.preadv(fd, [view[done:]], start + done)
        if count == 0:
            raise PageFormatError(f"file ends before byte {start + nbytes}")
        done += count
    return data


class PageFiles:
    """The two files of one page, opened when first needed."""

    def __init__(self, folder: str, name: str, *, data_start: int = 0) -> None:
        self.folder = folder
        self.name = name
        self.data_start = data_start
        self._text = self._data = -1

    @property
    def text(self) -> int:
        if self._text < 0:
            fd = open_file(self.folder, f"{self.name}.jsonl")
            with contextlib.ExitStack() as on_error:
                on_error.callback(os.close, fd)
                self.data_start = self.data_start or _check_first_line(fd)
                on_error.pop_all()
            self._text = fd
        return self._text

    @property
    def data(self) -> int:
        if self._data < 0:
            self._data = open_file(self.folder, f"{self.name}.safetensors")
        return self._data

    def line(self, start: int, end: int) -> bytes:
        """One line, without its newline."""
        size = end - start - 1
        if start < 0 or not 0 <= size < format.MAX_LINE:
            raise PageFormatError(f"line of {size} bytes at {start}")
        line = os.pread(self.text, size, start)
        return line if len(line) == size else read_at(self.text, start, size).tobytes()

    def close(self) -> None:
        for fd in (self._text, self._data):
            if fd >= 0:
                os.close(fd)
        self._text = self._data = -1


def _check_first_line(fd: int) -> int:
    """Check that this version reads the page; returns where its tensors begin."""
    members = format.unseal(os.pread(fd, FIRST_LINE, 0).partition(b"\n")[0])
    version, start = members.get("endoscope_page"), members.get("data_start")
    if type(version) is not int:
        raise PageFormatError("not a page of Endoscope")
    if version != format.VERSION:
        raise PageFormatError(
            f"written as format {version}; this version reads format {format.VERSION}: upgrade endoscope to read it"
        )
    if type(start) is not int or start < 8:
        raise PageFormatError("the first line does not say where the tensors begin")
    return start
