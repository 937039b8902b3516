"""The sink for pickle pages. Runs on the writer thread."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endoscope.pages import pickle_pages
from endoscope.pages.folders import sync_folder
from endoscope.pages.names import page_name
from endoscope.pages.page import Lost
from endoscope.pages.sink import Captured
from endoscope.summaries import with_summaries
from endoscope.values import apply_tensor_op


class PickleSink:
    """Collects a page in memory and dumps it when it is full, and at each flush."""

    def __init__(self, folder: Path, *, page_size: int, rank: int | None, first_page: int = 0) -> None:
        self._folder = folder
        self._page_size = page_size
        self._rank = rank
        self._joblib = pickle_pages.joblib()
        self._next, self._size = first_page, 0
        self._path: Path | None = None  # of the page, once it was flushed
        self._part = folder / f".{secrets.token_hex(8)}.pkl.part"
        self._page: dict[int, Any] = {}
        self.unsaved = 0

    def append(self, record: Captured) -> Mapping[str, str]:
        if self._page and self._size + record.nbytes > self._page_size:
            self._begin_page()
        indices = record.idx if isinstance(record.idx, list) else [record.idx]
        values = {name: with_summaries(captured.wait()) for name, captured in record.outputs.items()}
        for row, idx in enumerate(indices):
            outputs = {name: pickle_pages.one_datapoint(value, row, len(indices)) for name, value in values.items()}
            self._page[idx] = apply_tensor_op(pickle_pages.picklable, outputs)
        self._size += record.nbytes
        self.unsaved += 1
        return {}

    def write(self) -> list[Lost]:
        return []

    def flush(self) -> None:
        if not self.unsaved:
            return
        try:
            self._joblib.dump(self._page, self._part)
            with open(self._part, "rb+") as f:
                os.fsync(f.fileno())
            if self._path is None:
                self._path = self._publish()
            else:
                os.replace(self._part, self._path)
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
        self.unsaved = 0

    def _publish(self) -> Path:
        """Give the finished part the name of a page that no other writer has taken."""
        while True:
            path = self._folder / f"{page_name(self._next, self._rank)}.pkl"
            self._next += 1
            with contextlib.suppress(FileExistsError):  # another debugger writes into this folder, too
                _rename_to_new(self._part, path)
                return path

    def _begin_page(self) -> None:
        self.flush()
        self._page, self._size, self._path = {}, 0, None

    def close(self, *, dropped: int) -> None:
        self._begin_page()
        sync_folder(self._folder)


def _rename_to_new(part: Path, path: Path) -> None:
    """Raises `FileExistsError` where `os.rename` would replace a file."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # no links on this file system
        path.touch(exist_ok=False)
        try:
            os.replace(part, path)
        except OSError:
            path.unlink()
            raise
