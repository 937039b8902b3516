"""PageStore: where a capture's pages go: into their folder, or into a spool until that folder is known.

Called from the user's threads; a `PageWriter` writes the bytes on its own.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from endoscope import ranks
from endoscope.capturing.snapshot import Snapshot
from endoscope.errors import ConfigError, PageError
from endoscope.pages.folders import check_folder, ensure_folder, next_page, page_files, prepare_folder, replace_pages
from endoscope.pages.sink import PageSink, SafetensorsSink
from endoscope.pages.writer import OnFull, PageWriter, WriterClosed, WriterCounts

log = logging.getLogger("endoscope")

PageFormat = Literal["safetensors", "pickle"]


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
    """The open writer and spool; apart from the store, so that a finalizer can hold it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.writer: PageWriter | None = None
        self.spool: Path | None = None
        self.keeps_spool = False  # its pages could not be moved, and the user knows where they are
        self.unsaved = WriterCounts()  # of closed pages that no save has taken yet

    def end(self) -> None:
        """Close the pages, and count their records once."""
        if self.writer is not None:
            self.writer.close()
            self.unsaved, self.writer = self.unsaved + self.writer.counts, None

    def remove_spool(self) -> None:
        if self.spool is not None and not self.keeps_spool:
            shutil.rmtree(self.spool, ignore_errors=True)
        self.spool, self.keeps_spool, self.unsaved = None, False, WriterCounts()

    def abandon(self) -> None:
        """At exit or collection: finish the pages of a folder; what was only spooled was never saved and is removed."""
        if os.getpid() != self.pid:
            return
        self.end()
        if self.spool is not None and not self.keeps_spool and self.unsaved.written:
            log.warning(
                "%d captured records were never saved and are gone: call save_all(output_dir), or give output_dir",
                self.unsaved.written,
            )
        if self.spool is not None:
            self.remove_spool()


class PageStore:
    """Puts records into pages; `save_all` says where they belong if that was not known before."""

    def __init__(self, output_dir: str | os.PathLike[str] | None, settings: StoreSettings) -> None:
        self._settings = settings
        self._rank = ranks.rank() if ranks.is_distributed() else None
        self._world = ranks.world_size()
        self._lock = threading.Lock()
        self._open = _Open()
        self._closed = False
        self._finalizer = weakref.finalize(self, self._open.abandon)
        if settings.page_format == "pickle":
            from endoscope.pages.pickle_pages import joblib

            joblib()  # if it is missing, fail now and not at the first page
        spool = settings.spool_dir
        if spool is not None and not (os.path.isdir(spool) and os.access(spool, os.W_OK | os.X_OK)):
            raise ConfigError(f"spool_dir={os.fspath(spool)!r} is not a folder that can be written; create it first")
        self._home = self._folder = self._prepared(output_dir, settings.overwrite) if output_dir is not None else None

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
        return self._open.unsaved + (writer.counts if writer is not None else WriterCounts())

    # ---- records
    def put(self, idx: int | list[int], outputs: Mapping[str, Snapshot], notes: Mapping[str, Any]) -> bool:
        """Queue one record; False if it was dropped or lost."""
        if self.foreign:
            return False
        while True:
            writer = self._open.writer
            if writer is None or writer.closed:
                writer = self._next_writer()
            try:
                return writer.put(idx, outputs, notes)
            except WriterClosed:  # another thread has just saved or reset: the record belongs to what comes next
                continue

    def _next_writer(self) -> PageWriter:
        with self._lock:
            if self._closed:
                raise PageError("this debugger is closed; nothing more can be stored")
            if self._open.writer is not None and self._open.writer.closed:
                self._open.end()  # Ctrl-C has left it half closed
            return self._open.writer or self._begin()

    def _begin(self) -> PageWriter:
        settings = self._settings
        folder = self._folder or self._open.spool
        if folder is None:
            try:
                folder = Path(tempfile.mkdtemp(prefix="endoscope_", dir=settings.spool_dir))
            except OSError as e:
                raise ConfigError(f"cannot make a spool folder: {e}; give output_dir, or another spool_dir") from e
            self._open.spool = folder
        first = next_page(folder, self._rank)
        sink: PageSink
        if settings.page_format == "pickle":
            from endoscope.pages.pickle_sink import PickleSink

            sink = PickleSink(folder, page_size=settings.page_size, rank=self._rank, first_page=first)
        else:
            sink = SafetensorsSink(folder, page_size=settings.page_size, rank=self._rank, first_page=first)
        self._open.writer = PageWriter(sink, queue_bytes=settings.queue_bytes, on_full=settings.on_full)
        return self._open.writer

    def flush(self) -> bool:
        """Return when all records so far are in the kernel's hands; False if some of them were lost."""
        if self.foreign:
            return False
        writer = self._open.writer
        return (writer is None or writer.flush()) and self._open.unsaved.lost == 0

    # ---- captures
    def start(self) -> None:
        """Have the writer ready before the first record, if the folder is known; see `PageWriter.start`."""
        if self.foreign:
            return
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._open.writer is None and self._folder is not None and not self._closed:
            self._begin().start()

    def reset(self, output_dir: str | os.PathLike[str] | None = None, *, overwrite: bool | None = None) -> None:
        """Begin a new capture: into ``output_dir``, else into the constructor's folder, else into a spool.

        Pages that were streamed into a folder stay there, closed; spooled records that were never saved are dropped.
        """
        if self.foreign:
            return
        with self._lock:
            folder = None
            if output_dir is not None:
                folder = self._prepared(output_dir, self._settings.overwrite if overwrite is None else overwrite)
            self._open.end()
            self._open.remove_spool()
            self._folder = folder or self._home
            if folder is not None:
                self._start()

    def save_all(
        self, output_dir: str | os.PathLike[str], *, overwrite: bool | None = None
    ) -> tuple[Path, WriterCounts, str | None]:
        """Close the pages and move them to ``output_dir``; returns the folder, the counts, and any problem.

        What cannot be moved stays where it is, also if ``output_dir`` is refused; capture continues beside it, and the
        next call tries again.
        """
        target = Path(output_dir).absolute()
        if self.foreign:
            return target, WriterCounts(), "this process only inherited the debugger; the parent saves"
        with self._lock:
            if self._closed:
                raise PageError("this debugger is closed: call save_all before close(), or give output_dir")
            self._open.end()  # before looking for pages: until then another thread may put its first record
            counts = self._open.unsaved
            source = self._open.spool or self._folder
            if source is None or source.resolve() == target.resolve() or not page_files(source):
                ensure_folder(target, "output_dir")
            else:
                replace = self._settings.overwrite if overwrite is None else overwrite
                old = check_folder(target, rank=self._rank, world_size=self._world, overwrite=replace)
                try:
                    replace_pages(source, target, old, rank=self._rank)
                except OSError as e:
                    self._open.keeps_spool = True
                    problem = f"pages could not be moved ({e.strerror}); they stay in {str(source)!r}"
                    return target, dataclasses.replace(counts, written=0), f"{type(e).__name__}: {problem}"
            self._open.keeps_spool = False
            self._open.remove_spool()
            self._folder = self._home
            return target, counts, None

    def close(self) -> None:
        """Finish the pages of a folder; drop what was only spooled. May be called twice."""
        if self.foreign:
            return
        with self._lock:
            self._closed = True
            self._open.abandon()  # directly, because a finalizer runs only once and Ctrl-C may interrupt it
            self._finalizer.detach()
