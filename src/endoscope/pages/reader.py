"""Reading captures: `load_debug_outputs` gives a mapping of datapoint index to outputs, which are read on access.

Files are data: they are never unpickled, and every byte returned is checked against its checksum. Readers are safe to
use while a run is still writing, and from several threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from endoscope.errors import (
    DamagedRecordError,
    DatapointNotFoundError,
    PageError,
    PageFormatError,
    UntrustedPickleError,
)
from endoscope.pages.catalogue import PageInfo
from endoscope.pages.files import Listing, PageFiles, list_folder, sort_names
from endoscope.pages.lookup import look_up
from endoscope.pages.record import RecordReader
from endoscope.pages.scan import Damage

__all__ = ["Damage", "DebugOutputs", "load_debug_outputs"]

Names = list[str]  # inside the class below, list is a method
Damages = list[Damage]
_OPEN_PAGES = 64  # pages whose files stay open, so that a long run does not use up the process's descriptors


class DebugOutputs(Mapping[int, dict[str, Any]]):
    """The captures of one folder: datapoint index to ``{debugger name: outputs}``, read on access.

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"].shape
    torch.Size([1, 512, 7, 7])
    >>> outputs.list(17)                            # the debuggers that have outputs for datapoint 17
    ['backbone_features', 'gradcam_analysis']
    >>> outputs.read(17, "gradcam_analysis")        # only that one is read
    >>> outputs.notes(17)                           # what is absent and why, failures, call counts
    >>> outputs.damage                              # what cannot be read, and pages of another length than written

    Indices come in ascending order. If an index was captured twice, its latest record counts. A record is verified each
    time it is read. `refresh` adds what a live run has written since.
    """

    def __init__(self, folder: str | os.PathLike[str], *, listing: Listing | None = None) -> None:
        """``listing``: what the folder holds, if the caller has just looked."""
        self._path = os.fspath(folder)
        self._lock = threading.RLock()
        self._files: dict[str, PageFiles] = {}
        self._find_records(listing or list_folder(self._path))

    @property
    def folder(self) -> Path:
        return Path(self._path)

    # ---- finding
    def refresh(self) -> None:
        """Look at the folder again: new pages, and new records of pages that are still being written."""
        with self._lock:
            self.close()  # the files may have been replaced
            self._find_records(list_folder(self._path))

    def _find_records(self, listing: Listing) -> None:
        self._lookup = look_up(self._path, listing, self._open)
        self.known_damage: list[Damage] = [*self._lookup.damage]
        """What finding and reading records has shown so far; `damage` also checks lengths."""
        self._unmeasured = self._lookup.closed_pages
        self._last: tuple[int, RecordReader] | None = None

    def _open(self, name: str, data_start: int = 0) -> PageFiles:
        files = self._files.pop(name, None) or PageFiles(self._path, name, data_start=data_start)
        self._files[name] = files  # the last one used comes last
        if len(self._files) > _OPEN_PAGES:
            self._files.pop(next(iter(self._files))).close()
        return files

    def _locate(self, idx: Any) -> tuple[int, int]:
        """The record of a datapoint, and its row in the record's batch."""
        place = self._lookup.find(idx)
        if place is None:
            indices, seen = self._lookup.datapoints, len(self.known_damage)
            span = f"{len(indices)} datapoints, {indices[0]} to {indices[-1]}" if len(indices) else "no datapoint"
            lost = f"; {seen} damaged record(s) may have held it, see .damage" if seen else ""
            raise DatapointNotFoundError(f"no datapoint {idx} in {str(self.folder)!r}, which holds {span}{lost}")
        return place

    def _find(self, idx: int) -> tuple[RecordReader, int]:
        """The reader of a datapoint's record, and its row in the record's batch."""
        record, row = self._locate(idx)
        index = self._lookup.index
        info = index.pages[index.page[record]]
        files = self._open(info.name, info.data_start)
        if self._last is not None and self._last[0] == record:  # another datapoint of the same batch
            reader = self._last[1]
            reader.files = files
            return reader, row
        with self._naming_damage(idx, "jsonl"):
            reader = RecordReader(files, files.line(int(index.starts[record]), int(index.ends[record])))
            if row >= len(reader.indices) or reader.indices[row] != idx:
                raise PageFormatError("line of another datapoint than the catalogue says; delete catalogue.jsonl")
        self._last = (record, reader) if len(reader.indices) > 1 else None
        return reader, row

    @contextlib.contextmanager
    def _naming_damage(self, idx: int, suffix: str) -> Iterator[None]:
        """Add the file, the record and the datapoint to an error, and the error to the damage."""
        try:
            yield
        except PageFormatError as e:
            record, _ = self._locate(idx)
            index = self._lookup.index
            page = index.page[record]
            file = f"{index.pages[page].name}.{suffix}"
            in_page = record - int(index.page.searchsorted(page))
            damage = Damage(file, in_page, str(e), (int(idx),))
            if damage not in self.known_damage:
                self.known_damage.append(damage)
            raise DamagedRecordError(f"{self.folder / file}, record {in_page}, datapoint {idx}: {e}") from None

    # ---- reading
    def __getitem__(self, idx: int) -> dict[str, Any]:
        with self._lock:
            reader, row = self._find(idx)
            return {name: self._value(idx, reader, name, row) for name in reader.outputs}

    def _value(self, idx: int, reader: RecordReader, name: str, row: int) -> Any:
        with self._naming_damage(idx, "safetensors"):
            return reader.read(name, row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._lookup.datapoints.tolist())

    def __len__(self) -> int:
        return len(self._lookup.datapoints)

    def __contains__(self, idx: object) -> bool:
        try:
            return self._lookup.find(idx) is not None
        except DatapointNotFoundError:
            return False

    def list(self, idx: int) -> Names:
        """The names of the debuggers that have outputs for this datapoint."""
        with self._lock:
            return [*self._find(idx)[0].outputs]

    def read(self, idx: int, name: str) -> Any:
        """One debugger's outputs for one datapoint; the other debuggers' bytes are not read."""
        with self._lock:
            reader, row = self._find(idx)
            if name in reader.outputs:
                return self._value(idx, reader, name, row)
            notes = self._notes(idx, reader)
        why = next((f": {notes[k][name]}" for k in ("absent", "failures") if name in notes.get(k, {})), "")
        raise DatapointNotFoundError(f"datapoint {idx} has nothing from {name!r}{why}; it has {[*reader.outputs]}")

    def size(self, idx: int, name: str) -> int:
        """How many bytes of tensors `read` would fetch; 0 for a debugger without outputs."""
        with self._lock:
            reader, _ = self._find(idx)
            with self._naming_damage(idx, "jsonl"):
                return reader.size(name) if name in reader.outputs else 0

    def notes(self, idx: int) -> dict[str, Any]:
        """What is absent from this datapoint's record and why, which debuggers failed, how often a layer was called."""
        with self._lock:
            return self._notes(idx, self._find(idx)[0])

    def _notes(self, idx: int, reader: RecordReader) -> dict[str, Any]:
        with self._naming_damage(idx, "jsonl"):
            return reader.notes

    # ---- pages
    @property
    def pages(self) -> tuple[PageInfo, ...]:
        """Every page: its name, whether it was closed, and how many records were dropped while it was written."""
        return self._lookup.index.pages

    def page_counts(self) -> Sequence[tuple[int, int]]:
        """For each of `pages`, how many records and how many datapoints it holds."""
        index = self._lookup.index
        records = np.bincount(index.page, minlength=len(self.pages))
        datapoints = np.bincount(index.page, weights=index.counts, minlength=len(self.pages))
        return [(int(n), int(m)) for n, m in zip(records, datapoints, strict=True)]

    @property
    def records(self) -> int:
        """How many records there are; a record holds one datapoint, or a batch of them."""
        return len(self._lookup.index)

    @property
    def dropped(self) -> int:
        """Records that were dropped because the queue was full, as counted in the pages."""
        return sum(p.dropped for p in self.pages)

    @property
    def damage(self) -> Damages:
        """What was seen so far, and closed pages whose length has changed since they were written.

        The first time, each closed page is opened for its length, which finding a datapoint does not need.
        """
        with self._lock:
            if self._unmeasured:
                from endoscope.pages.verify import verify_lengths

                damage, self._unmeasured = verify_lengths(self._path, self._unmeasured)
                lines = {d.file for d in self.known_damage if d.file.endswith(".jsonl")}
                self.known_damage += [d for d in damage if d.file not in lines]
            return self.known_damage

    def verify(self) -> Sequence[Damage]:
        """Read and check every record of every page; returns what is damaged, the empty list when all is well."""
        from endoscope.pages.verify import verify_folder

        return verify_folder(self.folder)

    def close(self) -> None:
        """Close the files; reading opens them again."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()

    def __enter__(self) -> DebugOutputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        for files in getattr(self, "_files", {}).values():
            files.close()

    def __repr__(self) -> str:
        return f"<DebugOutputs {str(self.folder)!r}: {len(self)} datapoints in {len(self.pages)} pages>"


# ---------------------------------------------------------------- opening
def debugger_folder(directory: str | os.PathLike[str]) -> Path:
    """The folder with the pages: ``directory`` itself, or its ``debugger/``."""
    return Path(_look(directory)[0])


def _look(directory: str | os.PathLike[str]) -> tuple[str, Listing]:
    """The folder with the pages, and what it holds."""
    path = os.fspath(directory)
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        raise PageError(f"there is no folder {path!r}") from None
    if "debugger" in names and os.path.isdir(inside := os.path.join(path, "debugger")):
        return inside, list_folder(inside)
    listing = sort_names(names)
    epochs = [name for name in names if name.startswith("epoch_")]
    if epochs and not (listing.pages or listing.catalogues or listing.pickles):
        latest = os.path.join(path, max(epochs, key=lambda name: (len(name), name)))
        raise PageError(f"{path!r} holds {len(epochs)} epochs; choose one, such as {latest!r}")
    return path, listing


def load_debug_outputs(
    epoch_dir: str | os.PathLike[str], *, trust_pickle: bool = False
) -> Mapping[int, dict[str, Any]]:
    """Open what was captured in ``epoch_dir`` (or its ``debugger/`` folder).

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"]

    The mapping reads lazily and verifies what it reads; see `DebugOutputs`. Pickle pages can run code when opened: they
    are read only with ``trust_pickle=True``, and then all at once.
    """
    folder, listing = _look(epoch_dir)
    if listing.pickles:
        from endoscope.pages import pickle_pages

        if not trust_pickle:
            raise UntrustedPickleError(
                f"{folder!r} holds pickle pages, and opening a pickle can run any code; if you trust them, "
                f"pass trust_pickle=True, or convert them once with: endoscope pages import --trust {folder} NEW_FOLDER"
            )
        return pickle_pages.load(Path(folder))
    return DebugOutputs(folder, listing=listing)
