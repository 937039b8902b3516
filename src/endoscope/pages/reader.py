"""Reading captures back: `load_debug_outputs` gives a mapping of datapoint index to outputs, read when asked for.

Files are data: they are never unpickled, and every byte handed out is checked against its checksum. Safe to use while
a run is still writing.
"""

from __future__ import annotations

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
from endoscope.pages import catalogue, page
from endoscope.pages.files import Listing, PageFiles, list_folder, open_file, sort_names
from endoscope.pages.record import RecordReader
from endoscope.pages.scan import Damage, read_lines, scan

__all__ = ["Damage", "DebugOutputs", "load_debug_outputs"]

Names = list[str]  # inside the class below, list is a method
Damages = list[Damage]
_OPEN_PAGES = 64  # pages whose files stay open, so that a long run does not use up the process's descriptors


class DebugOutputs(Mapping[int, dict[str, Any]]):
    """The captures of one folder: datapoint index to ``{debugger name: outputs}``, read when asked for.

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"].shape
    torch.Size([1, 512, 7, 7])
    >>> outputs.list(17)                            # which debuggers gave something for datapoint 17
    ['backbone_features', 'gradcam_analysis']
    >>> outputs.read(17, "gradcam_analysis")        # only that one is read
    >>> outputs.notes(17)                           # what is absent and why, failures, call counts
    >>> outputs.damage                              # what cannot be read, and pages of another length than written

    Indices come in ascending order. An index captured twice gives its latest record. A record is verified each time it
    is read. `refresh` takes in what a live run has written since.
    """

    def __init__(self, folder: str | os.PathLike[str], *, listing: Listing | None = None) -> None:
        """``listing`` is what the folder holds, if that was looked up just now."""
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

    def _find_records(self, there: Listing) -> None:
        self.seen_damage: list[Damage] = []
        """What finding and reading records has shown so far; `damage` tells more."""
        self._last: tuple[int, RecordReader] | None = None
        parts = [part for name in there.catalogues for part in _read_catalogue(self._path, name, there)]
        covered = {info.name for part in parts for info in part.pages}
        if not covered <= there.pages.keys():  # a live run has closed pages since the folder was listed
            there = list_folder(self._path)
        for name in there.pages:
            if name not in covered:
                parts.append(self._scan(name))
        # An index captured twice gives its latest record, so the pages come as they were written.
        self._index = catalogue.ordered(catalogue.merge(parts), _page_order)
        for k, info in enumerate(self._index.pages):
            if info.name not in there.pages:
                lost = tuple(self._index.datapoints_of(k))
                self.seen_damage.append(Damage(f"{info.name}.jsonl", None, "the page is missing", lost))
        self._unmeasured = [info.name for info in self._index.pages if info.closed and info.name in there.pages]
        self._sort()

    def _scan(self, name: str) -> catalogue.Index:
        try:
            index, damage = scan(self._open(name))
        except PageFormatError as e:
            index, damage = _unreadable(name), [Damage(f"{name}.jsonl", None, str(e))]
        self.seen_damage += damage
        return index

    def _sort(self) -> None:
        """Datapoints in ascending order, each with its record and its row in that record's batch."""
        indices, counts = self._index.indices, self._index.counts
        record, row = np.arange(len(counts)), None
        if len(indices) != len(counts):
            row = np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)
            record = np.repeat(record, counts)
        if not (indices[1:] > indices[:-1]).all():
            order = np.argsort(indices, kind="stable")
            ordered = indices[order]
            order = order[np.append(ordered[1:] > ordered[:-1], True)]  # the last of equal ones is the latest
            indices, record = indices[order], record[order]
            row = row[order] if row is not None else None
        self._indices, self._record, self._row = indices, record, row  # no rows: every record holds one datapoint

    def _open(self, name: str, data_start: int = 0) -> PageFiles:
        files = self._files.pop(name, None) or PageFiles(self._path, name, data_start=data_start)
        self._files[name] = files  # the last one used comes last
        if len(self._files) > _OPEN_PAGES:
            self._files.pop(next(iter(self._files))).close()
        return files

    def _locate(self, idx: Any) -> tuple[int, int]:
        """The record of a datapoint, and its row in the record's batch."""
        if isinstance(idx, bool) or not isinstance(idx, (int, np.integer)):
            raise DatapointNotFoundError(f"a datapoint is found by its integer index, not by {type(idx).__name__}")
        at = int(self._indices.searchsorted(idx)) if -(1 << 63) <= idx < 1 << 63 else len(self)
        if at == len(self) or self._indices[at] != idx:
            span = f"{len(self)} datapoints, {self._indices[0]} to {self._indices[-1]}" if len(self) else "no datapoint"
            seen = len(self.seen_damage)
            lost = f"; {seen} damaged record(s) may have held it, see .damage" if seen else ""
            raise DatapointNotFoundError(f"no datapoint {idx} in {str(self.folder)!r}, which holds {span}{lost}")
        return int(self._record[at]), int(self._row[at]) if self._row is not None else 0

    def _find(self, idx: int) -> tuple[RecordReader, int]:
        """The reader of a datapoint's record, and its row in the record's batch."""
        record, row = self._locate(idx)
        index = self._index
        info = index.pages[index.page[record]]
        files = self._open(info.name, info.data_start)
        if self._last is not None and self._last[0] == record:
            reader = self._last[1]  # the next datapoint of the same batch: its line is known already
            reader.files = files
            return reader, row
        try:
            reader = RecordReader(files, files.line(int(index.starts[record]), int(index.ends[record])))
            if row >= len(reader.indices) or reader.indices[row] != idx:
                raise PageFormatError("line of another datapoint than the catalogue says; delete catalogue.jsonl")
        except PageFormatError as e:
            raise self._damaged(idx, "jsonl", e) from None
        self._last = (record, reader) if len(reader.indices) > 1 else None
        return reader, row

    def _damaged(self, idx: int, suffix: str, e: PageFormatError) -> DamagedRecordError:
        record, _ = self._locate(idx)
        page_number = self._index.page[record]
        file = f"{self._index.pages[page_number].name}.{suffix}"
        in_page = record - int(self._index.page.searchsorted(page_number))
        damage = Damage(file, in_page, str(e), (int(idx),))
        if damage not in self.seen_damage:
            self.seen_damage.append(damage)
        return DamagedRecordError(f"{self.folder / file}, record {in_page}, datapoint {idx}: {e}")

    # ---- reading
    def __getitem__(self, idx: int) -> dict[str, Any]:
        with self._lock:
            reader, row = self._find(idx)
            return {name: self._value(idx, reader, name, row) for name in reader.outputs}

    def _value(self, idx: int, reader: RecordReader, name: str, row: int) -> Any:
        try:
            return reader.read(name, row)
        except PageFormatError as e:
            raise self._damaged(idx, "safetensors", e) from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices.tolist())

    def __len__(self) -> int:
        return len(self._indices)

    def __contains__(self, idx: object) -> bool:
        try:
            self._locate(idx)
        except DatapointNotFoundError:
            return False
        return True

    def list(self, idx: int) -> Names:
        """The names of the debuggers that gave something for this datapoint."""
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
        """How many bytes of tensors `read` would fetch; 0 for a debugger that gave none."""
        with self._lock:
            reader, _ = self._find(idx)
            try:
                return reader.size(name) if name in reader.outputs else 0
            except PageFormatError as e:
                raise self._damaged(idx, "jsonl", e) from None

    def notes(self, idx: int) -> dict[str, Any]:
        """What is absent from this datapoint's record and why, which debuggers failed, how often a layer was called."""
        with self._lock:
            return self._notes(idx, self._find(idx)[0])

    def _notes(self, idx: int, reader: RecordReader) -> dict[str, Any]:
        try:
            return reader.notes
        except PageFormatError as e:
            raise self._damaged(idx, "jsonl", e) from None

    @property
    def pages(self) -> tuple[catalogue.PageInfo, ...]:
        """Every page: its name, whether it was closed, and how many records were dropped while it was written."""
        return self._index.pages

    def page_counts(self) -> Sequence[tuple[int, int]]:
        """For each of `pages`, how many records it holds, and how many datapoints they are of."""
        pages, counts = self._index.page, self._index.counts
        records = np.bincount(pages, minlength=len(self.pages))
        datapoints = np.bincount(pages, weights=counts, minlength=len(self.pages))
        return [(int(n), int(m)) for n, m in zip(records, datapoints, strict=True)]

    @property
    def records(self) -> int:
        """How many records there are; a record holds one datapoint, or a batch of them."""
        return len(self._index)

    @property
    def dropped(self) -> int:
        """Records that were dropped because the queue was full, as counted in the pages."""
        return sum(p.dropped for p in self.pages)

    @property
    def damage(self) -> Damages:
        """What was seen so far, with closed pages of another length than they were written with.

        The first time, each closed page is opened to see its length, which finding a datapoint does without.
        """
        with self._lock:
            if self._unmeasured:
                from endoscope.pages.verify import verify_lengths

                found, self._unmeasured = verify_lengths(self._path, self._unmeasured)
                lines = {damage.file for damage in self.seen_damage if damage.file.endswith(".jsonl")}
                self.seen_damage += [damage for damage in found if damage.file not in lines]
            return self.seen_damage

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


def _read_catalogue(folder: str, name: str, there: Listing) -> Sequence[catalogue.Index]:
    try:
        fd = open_file(folder, name)
    except PageFormatError:
        return []
    try:
        lines = (line for _, line, _ in read_lines(fd) if line is not None)
        return [part for part in catalogue.decode_all(lines) if _names_pages(part, there)]
    finally:
        os.close(fd)


def _names_pages(index: catalogue.Index, there: Listing) -> bool:
    """A catalogue can name pages of its own folder only: those that are there, and those that may have been."""
    return bool(index.pages) and all(p.name in there.pages or page.parse_name(f"{p.name}.jsonl") for p in index.pages)


def _page_order(name: str) -> tuple[int, int]:
    return page.order(page.parse_name(f"{name}.jsonl"))


def _unreadable(name: str) -> catalogue.Index:
    return catalogue.of_page(catalogue.PageInfo(name, closed=False))


def debugger_folder(directory: str | os.PathLike[str]) -> Path:
    """The folder with the pages: ``directory`` itself, or its ``debugger/``."""
    return Path(_look(directory)[0])


def _look(directory: str | os.PathLike[str]) -> tuple[str, Listing]:
    """The folder with the pages, and what it holds."""
    given = os.fspath(directory)
    try:
        names = os.listdir(given)
    except (FileNotFoundError, NotADirectoryError):
        raise PageError(f"there is no folder {given!r}") from None
    if "debugger" in names and os.path.isdir(inside := os.path.join(given, "debugger")):
        return inside, list_folder(inside)
    there = sort_names(names)
    if not (there.pages or there.catalogues or there.pickles):
        epochs = [name for name in names if name.startswith("epoch_")]
        if epochs:
            such = os.path.join(given, max(epochs, key=lambda name: (len(name), name)))
            raise PageError(f"{given!r} holds {len(epochs)} epochs; choose one, such as {such!r}")
    return given, there


def load_debug_outputs(
    epoch_dir: str | os.PathLike[str], *, trust_pickle: bool = False
) -> Mapping[int, dict[str, Any]]:
    """Open what was captured in ``epoch_dir`` (or its ``debugger/`` folder).

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"]

    The mapping reads lazily and verifies what it reads; see `DebugOutputs`. Pickle pages can run code when opened: they
    are read only with ``trust_pickle=True``, and then all at once.
    """
    folder, there = _look(epoch_dir)
    if there.pickles:
        from endoscope.pages import pickle_pages

        if not trust_pickle:
            raise UntrustedPickleError(
                f"{folder!r} holds pickle pages, and opening a pickle can run any code; if you trust them, "
                f"pass trust_pickle=True, or convert them once with: endoscope pages import --trust {folder} NEW_FOLDER"
            )
        return pickle_pages.load(Path(folder))
    return DebugOutputs(folder, listing=there)
