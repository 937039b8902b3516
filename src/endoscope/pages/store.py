"""PageStore: where a capture's pages are: in the folder they are meant for, or in a spool until that folder is known.

Every method is called from the user's threads; the bytes are written by `PageWriter`'s.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from endoscope.capturing.snapshot import Snapshot
from endoscope.errors import ConfigError, PageError
from endoscope.pages import page
from endoscope.pages.folders import check_folder, make_folder, page_files, prepare_folder, replace_pages
from endoscope.pages.sink import PageSink, SafetensorsSink
from endoscope.pages.writer import OnFull, PageWriter, WriterClosed, WriterCounts

log = logging.getLogger("endoscope")

PageFormat = Literal["safetensors", "pickle"]


def process_rank() -> tuple[int | None, int]:
    """(rank, world size) of this process under torch.distributed or torchrun; (None, 1) when it is alone."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    else:
        rank, world = (int(os.environ.get(k, d)) for k, d in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return (rank, world) if world > 1 else (None, 1)


def _check_spool(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"spool_dir={str(folder)!r} is no folder that can be written into; make it first")


@dataclass(frozen=True)
class StoreSettings:
    """How pages are written; see `SequentialDebugger` for what each means."""

    page_size: int
    queue_bytes: int
    on_full: OnFull = "block"
    page_format: PageFormat = "safetensors"
    overwrite: bool = False
    spool_dir: str | os.PathLike[str] | None = None


class _Open:
    """The writer and the spool that are open now; apart from the store, so that a finalizer can hold it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.writer: PageWriter | None = None
        self.spool: Path | None = None
        self.spared = False  # a spool whose pages could not be moved: the user was told where they are
        self.unmoved = WriterCounts()  # of pages that are closed, and no save has taken them yet

    def end(self) -> None:
        """Close the pages; their records are counted once, also when a signal handler comes to close them meanwhile."""
        writer = self.writer
        if writer is None:
            return
        writer.close()
        counts = self.unmoved + writer.counts
        if self.writer is writer:
            self.writer, self.unmoved = None, counts

    def abandon(self) -> None:
        """At exit or collection: finish what streams into a folder; what was only spooled was never saved, and goes."""
        if os.getpid() != self.pid:
            return
        self.end()
        if self.spool is not None and not self.spared:
            if self.unmoved.written:
                log.warning(
                    "%d captured records were never saved and are gone: call save_all(output_dir), or give output_dir",
                    self.unmoved.written,
                )
            shutil.rmtree(self.spool, ignore_errors=True)
            self.unmoved = WriterCounts()
        self.spool = None


class PageStore:
    """Puts records into pages; `save_all` says where they belong when that was not known before."""

    def __init__(self, output_dir: str | os.PathLike[str] | None, settings: StoreSettings) -> None:
        self._settings = settings
        self._rank, self._world = process_rank()
        self._lock = threading.RLock()
        self._open = _Open()
        self._closed = False
        self._interjected = 0  # records of signal handlers, dropped in the middle of a save or reset
        self._finalizer = weakref.finalize(self, self._open.abandon)
        if settings.page_format == "pickle":
            from endoscope.pages.pickle_pages import joblib

            joblib()  # missing: say so now, not at the first page
        if settings.spool_dir is not None:
            _check_spool(Path(settings.spool_dir))
        self._home = self._folder = self._prepared(output_dir, settings.overwrite) if output_dir is not None else None

    def _checked(self, folder: Path, overwrite: bool) -> list[Path]:
        return check_folder(folder, rank=self._rank, world_size=self._world, overwrite=overwrite)

    def _prepared(self, output_dir: str | os.PathLike[str], overwrite: bool) -> Path:
        folder = Path(output_dir).absolute()
        prepare_folder(folder, rank=self._rank, world_size=self._world, overwrite=overwrite)
        return folder

    @property
    def foreign(self) -> bool:
        """True in a forked child, which must leave the parent's files alone."""
        return os.getpid() != self._open.pid

    @property
    def counts(self) -> WriterCounts:
        """Of the records put since the last reset or save."""
        writer = self._open.writer
        return self._open.unmoved + (writer.counts if writer is not None else WriterCounts())

    def put(self, idx: int | list[int], outputs: Mapping[str, Snapshot], notes: Mapping[str, Any]) -> bool:
        """Queue one record; False when it was dropped."""
        writer = self._open.writer
        refused: PageWriter | None = None
        while True:
            if writer is None:
                if os.getpid() != self._open.pid:
                    return False
                if self._lock._is_owned():  # type: ignore[attr-defined]
                    # A signal handler in the middle of a save or reset of this very thread.
                    self._interjected += 1
                    return False
                with self._lock:
                    if self._closed:
                        raise PageError("this debugger is closed; nothing more can be stored")
                    if refused is not None and self._open.writer is refused:
                        self._open.end()  # an interrupt has left it half closed
                    writer = self._open.writer or self._begin()
            try:
                return writer.put(idx, outputs, notes)
            except WriterClosed:  # another thread has just saved or reset: this record belongs to what comes next
                writer, refused = None, writer

    def _begin(self) -> PageWriter:
        folder = self._folder or self._open.spool
        if folder is None:
            try:
                folder = Path(tempfile.mkdtemp(prefix="endoscope_", dir=self._settings.spool_dir))
            except OSError as e:
                raise ConfigError(f"cannot make a spool folder: {e}; give output_dir, or another spool_dir") from e
            self._open.spool = folder
        s = self._settings
        first = 1 + max(
            (
                n
                for f in page_files(folder)
                for n, rank, _ in [page.parse_name(f.name) or (-1, None, "")]
                if rank == self._rank
            ),
            default=-1,
        )
        sink: PageSink
        if s.page_format == "pickle":
            from endoscope.pages.pickle_pages import PickleSink

            sink = PickleSink(folder, page_size=s.page_size, rank=self._rank, first_page=first)
        else:
            sink = SafetensorsSink(folder, page_size=s.page_size, rank=self._rank, first_page=first)
        self._open.writer = PageWriter(sink, queue_bytes=s.queue_bytes, on_full=s.on_full)
        return self._open.writer

    def flush(self) -> bool:
        """Return when all records so far are in the kernel's hands; False when some of them were lost."""
        if self.foreign:
            return False
        writer = self._open.writer
        return (writer is None or writer.flush()) and self._open.unmoved.lost == 0

    def reset(self, output_dir: str | os.PathLike[str] | None = None, *, overwrite: bool | None = None) -> None:
        """Begin anew: into ``output_dir``, else into the constructor's folder, else into a spool.

        Pages that were streamed into a folder stay there, closed; spooled records that were never saved are dropped.
        """
        if self.foreign:
            return
        with self._lock:
            folder = None
            if output_dir is not None:
                folder = self._prepared(output_dir, self._settings.overwrite if overwrite is None else overwrite)
            self._interjected = 0  # those that come from now on belong to what comes next
            self._open.end()
            if self._open.spool is not None and not self._open.spared:
                shutil.rmtree(self._open.spool, ignore_errors=True)
            self._open.spool, self._open.spared, self._open.unmoved = None, False, WriterCounts()
            self._folder = folder or self._home
            if folder is not None:
                self.start()

    def start(self) -> None:
        """Have the writer ready before the first record comes, where the folder is known; see `PageWriter.start`."""
        if self.foreign:
            return
        with self._lock:
            if self._open.writer is None and self._folder is not None and not self._closed:
                self._begin().start()

    def save_all(
        self, output_dir: str | os.PathLike[str], *, overwrite: bool | None = None
    ) -> tuple[Path, WriterCounts, str | None]:
        """Close the pages and have them in ``output_dir``; returns the folder, the counts, and any problem.

        What cannot be moved stays where it is, also when ``output_dir`` is refused; capture goes on beside it, and the
        next call tries again.
        """
        target = Path(output_dir).absolute()
        if self.foreign:
            return target, WriterCounts(), "this process only inherited the debugger; the parent saves"
        with self._lock:
            if self._closed:
                raise PageError("this debugger is closed: call save_all before close(), or give output_dir")
            if self._open.writer is not None and self._open.writer.putting:
                return target, WriterCounts(), "called by a signal handler in the middle of a capture: call it again"
            self._open.end()  # before the look at what there is: until then another thread may put its first record
            here = self._open.spool or self._folder
            if here is not None and here.resolve() != target.resolve() and page_files(here):
                old = self._checked(target, self._settings.overwrite if overwrite is None else overwrite)
                try:
                    replace_pages(here, target, old, rank=self._rank)
                except OSError as e:
                    self._open.spared = True
                    stay = f"pages could not be moved ({e.strerror}); they stay in {str(here)!r}"
                    counts = self._open.unmoved + WriterCounts(dropped=self._interjected)
                    return target, replace(counts, written=0), f"{type(e).__name__}: {stay}"
            else:
                make_folder(target, "output_dir")
            interjected, self._interjected = self._interjected, 0
            counts = self._open.unmoved + WriterCounts(dropped=interjected)
            self._open.unmoved, self._open.spared = WriterCounts(), False
            if self._open.spool is not None:
                shutil.rmtree(self._open.spool, ignore_errors=True)
            self._open.spool = None
            self._folder = self._home
            return target, counts, None

    def close(self) -> None:
        """Finish the pages of a folder; drop what was only spooled. May be called twice."""
        with self._lock:
            self._closed = True
            self._open.abandon()  # not through the finalizer, which is called once: a close can be interrupted
            self._finalizer.detach()
