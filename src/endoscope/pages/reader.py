"""Reading captures back: `load_debug_outputs` gives a mapping of datapoint index to outputs that reads only what is asked for.

Files are data: opened read-only, never followed through links, never unpickled, every length checked against the file
before memory is taken for it, every byte handed out checked against its checksum. Safe to use while a run is still writing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.errors import DamagedRecordError, DatapointNotFoundError, PageError, PageFormatError, UntrustedPickleError
from endoscope.pages import catalogue, format, page

_FIRST_LINE = 512
_SMALL_BLOCK = 64 << 10  # below this one read of the whole batch is cheaper than one for each tensor


@dataclass(frozen=True, slots=True)
class Damage:
    """Something on disk that could not be read: which file, which record (None: the file itself), and why."""

    file: str
    record: int | None
    cause: str
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = self.file if self.record is None else f"{self.file}, record {self.record}"
        which = f" (datapoint {', '.join(map(str, self.indices[:8]))})" if self.indices else ""
        return f"{where}{which}: {self.cause}"


def open_file(path: Path) -> int:
    """Open a regular file for reading; a link, a pipe or a device in its place is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise PageFormatError(f"{path.name} is missing") from None
    except OSError as e:
        raise PageFormatError(f"{path.name} cannot be opened: {e.strerror}; links are not followed") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PageFormatError(f"{path.name} is not a regular file")
    return fd


def read_at(fd: int, start: int, nbytes: int) -> np.ndarray[Any, Any]:
    """``nbytes`` at ``start`` into fresh memory; raises when the file is shorter than that."""
    if start + nbytes > os.fstat(fd).st_size:
        raise PageFormatError(f"file ends before byte {start + nbytes}")
    data = np.empty(nbytes, np.uint8)
    view, done = memoryview(data), 0
    while done < nbytes:
        got = os.preadv(fd, [view[done:]], start + done)
        if got == 0:
            raise PageFormatError(f"file ends before byte {start + nbytes}")
        done += got
    return data


class PageFiles:
    """The two files of one page, opened when first needed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._text = self._data = -1
        self.data_start = 0

    @property
    def text(self) -> int:
        if self._text < 0:
            fd = open_file(self.folder / f"{self.name}.jsonl")
            try:
                self.data_start = self._check_first_line(fd)
            except BaseException:
                os.close(fd)
                raise
            self._text = fd
        return self._text

    @property
    def data(self) -> int:
        if self._data < 0:
            self._data = open_file(self.folder / f"{self.name}.safetensors")
        return self._data

    def _check_first_line(self, fd: int) -> int:
        first = os.pread(fd, _FIRST_LINE, 0).partition(b"\n")[0]
        members = format.unseal(first)
        version, start = members.get("endoscope_page"), members.get("data_start")
        if type(version) is not int:
            raise PageFormatError("not a page of Endoscope")
        if version != format.VERSION:
            raise PageFormatError(f"written as format {version}; this version reads format {format.VERSION}: upgrade endoscope to read it")
        if type(start) is not int or start < 8:
            raise PageFormatError("no place given for the data")
        return start

    def line(self, start: int, end: int) -> bytes:
        """One line, without its newline."""
        if not 0 < end - start <= format.MAX_LINE:
            raise PageFormatError(f"line of {end - start} bytes")
        return read_at(self.text, start, end - start - 1).tobytes()

    def close(self) -> None:
        for fd in (self._text, self._data):
            if fd >= 0:
                os.close(fd)
        self._text = self._data = -1


def scan(files: PageFiles) -> tuple[catalogue.PageIndex, list[Damage]]:
    """Find the records of one page from its lines alone: for a page that is being written, or whose writer was killed."""
    name = f"{files.name}.jsonl"
    indices: list[int] = []
    counts: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    damage: list[Damage] = []
    dropped = 0
    closed = False

    def take(members: dict[str, Any], start: int, end: int) -> None:
        nonlocal dropped
        found = read_indices(members)
        indices.extend(found)
        counts.append(len(found))
        starts.append(start)
        ends.append(end)
        dropped += _count(members.get("dropped"))

    try:
        size = os.fstat(files.text).st_size
    except PageFormatError as e:
        # A kill right after the files were made leaves an empty one: that is an unfinished page, not a damaged one.
        if not _is_empty(files.folder / name):
            damage.append(Damage(name, None, str(e)))
        return catalogue.empty(files.name), damage
    for start, line in _lines(files.text, size):
        end = start + len(line) + 1
        try:
            members = format.unseal(line)
            if "idx" in members:
                take(members, start, end)
            elif isinstance(members.get("closed"), dict):
                closed = True
                dropped += _count(members["closed"].get("dropped"))
        except PageFormatError as e:
            damage.append(Damage(name, len(counts) + len(damage), str(e)))
            if (inside := _rescue(line)) is not None:
                take(format.unseal(line[inside:]), start + inside, end)
    return catalogue.make(files.name, indices, counts, starts, ends, dropped=dropped, closed=closed), damage


def _is_empty(path: Path) -> bool:
    try:
        return path.stat(follow_symlinks=False).st_size == 0
    except OSError:
        return False


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _lines(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(start, line) of every line that is ended; what follows the last newline is still being written, or was torn."""
    rest, at, start = b"", 0, 0
    while at < size:
        chunk = os.pread(fd, min(4 << 20, size - at), at)
        if not chunk:
            return
        at += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield start, line
            start += len(line) + 1
        if len(rest) > format.MAX_LINE:  # no line is so long: look for the next one without keeping this
            raise PageFormatError(f"line of more than {format.MAX_LINE} bytes")


def _rescue(line: bytes) -> int | None:
    """Where a whole record begins inside a bad line, whose newline to the one before was lost."""
    at = line.find(b'{"idx":', 1)
    while at > 0:
        if format.is_sealed(line[at:]):
            return at
        at = line.find(b'{"idx":', at + 1)
    return None


def read_indices(members: dict[str, Any]) -> list[int]:
    idx = members.get("idx")
    found = idx if isinstance(idx, list) else [idx]
    if not found or not all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in found):
        raise PageFormatError("line without a usable idx")
    return found


class RecordReader:
    """Decodes one record's line and fetches its blocks."""

    def __init__(self, files: PageFiles, line: bytes) -> None:
        self.files = files
        self.members = format.unseal(line)
        self.indices = read_indices(self.members)
        self.at = self.members.get("at")
        outputs = self.members.get("outputs")
        if type(self.at) is not int or self.at < files.data_start or not isinstance(outputs, dict):
            raise PageFormatError("line without its outputs")
        self.outputs: dict[str, Any] = outputs

    @property
    def notes(self) -> dict[str, Any]:
        notes = self.members.get("notes")
        return format.decode(notes, _no_tensor, None) if isinstance(notes, dict) else {}

    def read(self, name: str, row: int | None) -> Any:
        """One debugger's value: for datapoint ``row`` of the record, or as the whole batch was given."""
        block = self.outputs[name]
        if not isinstance(block, dict) or "value" not in block:
            raise PageFormatError(f"outputs of {name!r} are malformed")
        count = len(self.indices)
        if count == 1:
            row = None
        if "bytes" not in block:
            return format.decode(block["value"], _no_tensor, row)
        start, size = block.get("at"), block["bytes"]
        if type(start) is not int or type(size) is not int or start < 0 or size < 0:
            raise PageFormatError(f"outputs of {name!r} have no place")
        spans = format.spans(block["value"], size, count)
        by_ref = self._fetch(block, self.at + start, size, spans, row)
        return format.decode(block["value"], lambda ref: by_ref[id(ref)], row)

    def _fetch(self, block: dict[str, Any], at: int, size: int, spans: list[tuple[dict[str, Any], format.Span]], row: int | None) -> dict[int, torch.Tensor]:
        """Read and verify the bytes that ``row`` needs, and make tensors of them."""
        batched = any(s.row is not None for _, s in spans)
        piecewise = row is not None and batched and size > _SMALL_BLOCK
        whole = None if piecewise else read_at(self.files.data, at, size)
        shared = xxhash.xxh3_64()
        rows = {j: xxhash.xxh3_64() for j in (range(len(self.indices)) if row is None else [row])} if batched else {}
        made: dict[int, torch.Tensor] = {}
        for ref, s in spans:
            first, length = s.start, s.nbytes
            if s.row is not None and row is not None:
                first, length = s.start + row * s.row, s.row
            data = read_at(self.files.data, at + first, length) if whole is None else whole[first : first + length]
            if s.row is None:
                shared.update(data)
            elif row is not None:
                rows[row].update(data)
            else:
                for j, digest in rows.items():
                    digest.update(data[j * s.row : (j + 1) * s.row])
            made[id(ref)] = _tensor(ref, data, cut=s.row is not None and row is not None)
        if shared.hexdigest() != block.get("sum"):
            raise PageFormatError("checksum of the tensors does not match")
        sums = block.get("sums")
        if rows and not (isinstance(sums, list) and len(sums) == len(self.indices) and all(d.hexdigest() == sums[j] for j, d in rows.items())):
            raise PageFormatError("checksum of the tensors does not match")
        return made


def _tensor(ref: dict[str, Any], data: np.ndarray[Any, Any], *, cut: bool) -> torch.Tensor:
    dtype = format.DTYPES[ref["dtype"]].torch
    shape = ref["shape"]
    if cut:
        shape = shape[1:] if ref["batch"] == "one" else [1, *shape[1:]]
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _no_tensor(ref: dict[str, Any]) -> torch.Tensor:
    raise PageFormatError("tensor in a place that has none")


class DebugOutputs(Mapping[int, dict[str, Any]]):
    """The captures of one folder: datapoint index to ``{debugger name: outputs}``, read when asked for.

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"].shape
    torch.Size([1, 512, 7, 7])
    >>> outputs.list(17)                            # which debuggers gave something for datapoint 17
    ['backbone_features', 'gradcam_analysis']
    >>> outputs.read(17, "gradcam_analysis")        # only that one is read
    >>> outputs.notes(17)                           # what is absent and why, failures, call counts
    >>> outputs.damage                              # what could not be read; reading it raises DamagedRecordError

    Indices come in ascending order. An index captured twice gives its latest record. A record is verified each time it
    is read. `refresh` takes in what a live run has written since.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, PageFiles] = {}
        self._pages: list[catalogue.PageIndex] = []
        self.damage: list[Damage] = []
        self.refresh()

    # ---- finding
    def refresh(self) -> None:
        """Look at the folder again: new pages, and new records of pages that are still being written."""
        self._pages, self.damage = [], []
        names: dict[str, None] = {}
        catalogues = []
        for entry in sorted(e.name for e in os.scandir(self.folder)):
            parsed = page.parse_name(entry)
            if parsed is None:
                continue
            if parsed[2] == "catalogue":
                catalogues.append(entry)
            elif parsed[2] == "jsonl":
                names[entry.removesuffix(".jsonl")] = None
            elif parsed[2] == "safetensors":
                names.setdefault(entry.removesuffix(".safetensors"))
        known = self._read_catalogues(catalogues)
        for name in sorted(names, key=lambda n: page.order(f"{n}.jsonl")):
            index = known.pop(name, None)
            if index is None:
                files = self._open(name)
                try:
                    index, damage = scan(files)
                except PageFormatError as e:
                    index, damage = catalogue.empty(name), [Damage(f"{name}.jsonl", None, str(e))]
                self.damage += damage
            self._pages.append(index)
        for name, index in known.items():  # in the catalogue, but gone from the folder
            self._pages.append(index)
            self.damage.append(Damage(f"{name}.jsonl", None, "the page is missing", tuple(index.indices.tolist())))
        self._index()

    def _read_catalogues(self, names: list[str]) -> dict[str, catalogue.PageIndex]:
        known = {}
        for name in names:
            try:
                fd = open_file(self.folder / name)
            except PageFormatError:
                continue
            try:
                data = read_at(fd, 0, os.fstat(fd).st_size).tobytes()
            except PageFormatError:
                continue
            finally:
                os.close(fd)
            for line in data.split(b"\n"):
                try:
                    index = catalogue.decode(line)
                except PageFormatError:
                    continue
                if page.parse_name(f"{index.page}.jsonl") is not None:
                    known[index.page] = index
        return known

    def _index(self) -> None:
        """Sort all datapoints by index; of equal ones the latest record comes last."""
        parts = [p for p in self._pages if p.records]
        empty = np.empty(0, np.int64)
        indices = np.concatenate([p.indices for p in parts]) if parts else empty
        record = np.concatenate([np.repeat(np.arange(p.records), p.counts) for p in parts]) if parts else empty
        row = np.concatenate([np.arange(len(p.indices)) - np.repeat(np.cumsum(p.counts) - p.counts, p.counts) for p in parts]) if parts else empty
        which = np.repeat(np.arange(len(parts)), [len(p.indices) for p in parts]) if parts else empty
        if len(indices) and not (np.diff(indices) > 0).all():
            order = np.argsort(indices, kind="stable")
            last = np.append(np.diff(indices[order]) > 0, True)
            order = order[last]
            indices, record, row, which = indices[order], record[order], row[order], which[order]
        self._parts, self._indices, self._record, self._row, self._which = parts, indices, record, row, which

    def _open(self, name: str) -> PageFiles:
        if name not in self._files:
            self._files[name] = PageFiles(self.folder, name)
        return self._files[name]

    def _locate(self, idx: int) -> tuple[catalogue.PageIndex, int, int]:
        try:
            wanted = int(idx)
        except (TypeError, ValueError):
            raise DatapointNotFoundError(f"a datapoint is found by its integer index, not by {type(idx).__name__}") from None
        at = int(np.searchsorted(self._indices, wanted))
        if at == len(self._indices) or self._indices[at] != wanted:
            lost = f"; {len(self.damage)} damaged record(s) in this folder may have held it (see .damage)" if self.damage else ""
            span = f"it holds {len(self)}, from {self._indices[0]} to {self._indices[-1]}" if len(self) else "it holds none"
            raise DatapointNotFoundError(f"no datapoint {wanted} in {str(self.folder)!r}; {span}{lost}")
        return self._parts[int(self._which[at])], int(self._record[at]), int(self._row[at])

    def _record_reader(self, idx: int) -> tuple[RecordReader, int, catalogue.PageIndex, int]:
        index, record, row = self._locate(idx)
        files = self._open(index.page)
        start, end = int(index.starts[record]), int(index.ends[record])
        try:
            reader = RecordReader(files, files.line(start, end))
            if row >= len(reader.indices) or reader.indices[row] != idx:
                raise PageFormatError("line holds another datapoint than the catalogue says")
        except PageFormatError as e:
            raise self._damaged(index.page, "jsonl", record, idx, e) from None
        return reader, row, index, record

    def _damaged(self, name: str, suffix: str, record: int, idx: int, e: PageFormatError) -> DamagedRecordError:
        damage = Damage(f"{name}.{suffix}", record, str(e), (int(idx),))
        if damage not in self.damage:
            self.damage.append(damage)
        return DamagedRecordError(f"{self.folder / damage.file}, record {record}, datapoint {idx}: {e}")

    # ---- reading
    def __getitem__(self, idx: int) -> dict[str, Any]:
        reader, row, index, record = self._record_reader(idx)
        return {name: self._read(reader, name, row, index, record, idx) for name in reader.outputs}

    def _read(self, reader: RecordReader, name: str, row: int, index: catalogue.PageIndex, record: int, idx: int) -> Any:
        try:
            return reader.read(name, row)
        except PageFormatError as e:
            raise self._damaged(index.page, "safetensors", record, idx, e) from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices.tolist())

    def __len__(self) -> int:
        return len(self._indices)

    def __contains__(self, idx: object) -> bool:
        try:
            self._locate(idx)  # type: ignore[arg-type]
        except DatapointNotFoundError:
            return False
        return True

    def list(self, idx: int) -> list[str]:
        """The names of the debuggers that gave something for this datapoint."""
        return [*self._record_reader(idx)[0].outputs]

    def read(self, idx: int, name: str) -> Any:
        """One debugger's outputs for one datapoint; the other debuggers' bytes are not read."""
        reader, row, index, record = self._record_reader(idx)
        if name not in reader.outputs:
            why = reader.notes.get("absent", {}).get(name) or reader.notes.get("failures", {}).get(name)
            raise DatapointNotFoundError(f"datapoint {idx} has nothing from {name!r}{': ' + why if why else ''}; it has {[*reader.outputs]}")
        return self._read(reader, name, row, index, record, idx)

    def notes(self, idx: int) -> dict[str, Any]:
        """What is absent from this datapoint's record and why, which debuggers failed, how often a layer was called."""
        return self._record_reader(idx)[0].notes

    @property
    def pages(self) -> tuple[catalogue.PageIndex, ...]:
        return tuple(self._pages)

    @property
    def dropped(self) -> int:
        """Records that were dropped because the queue was full, as counted in the pages."""
        return sum(p.dropped for p in self._pages)

    def verify(self) -> list[Damage]:
        """Read and check every record of every page; returns what is damaged, the empty list when all is well."""
        from endoscope.pages.verify import verify_folder

        return verify_folder(self.folder)

    def close(self) -> None:
        """Close the files; reading opens them again."""
        for files in self._files.values():
            files.close()

    def __enter__(self) -> DebugOutputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        for files in getattr(self, "_files", {}).values():
            files.close()

    def __repr__(self) -> str:
        return f"<DebugOutputs {str(self.folder)!r}: {len(self)} datapoints in {len(self._pages)} pages>"


def debugger_folder(directory: str | os.PathLike[str]) -> Path:
    """The folder with the pages: ``directory`` itself, or its ``debugger/``."""
    given = Path(directory)
    inside = given / "debugger"
    if inside.is_dir():
        return inside
    if not given.is_dir():
        raise PageError(f"there is no folder {str(given)!r}")
    if given.name != "debugger" and not any(page.parse_name(e.name) for e in os.scandir(given)):
        epochs = sorted(e.name for e in os.scandir(given) if e.name.startswith("epoch_") and e.is_dir())
        if epochs:
            raise PageError(f"{str(given)!r} holds {len(epochs)} epochs; choose one, such as {str(given / epochs[-1])!r}")
    return given


def load_debug_outputs(epoch_dir: str | os.PathLike[str], *, trust_pickle: bool = False) -> Mapping[int, dict[str, Any]]:
    """Open what was captured in ``epoch_dir`` (or its ``debugger/`` folder).

    >>> outputs = load_debug_outputs("runs/cnn/epoch_4")
    >>> outputs[17]["backbone_features"]["feature_map"]

    The mapping reads lazily and verifies what it reads; see `DebugOutputs`. Pickle pages can run code when opened: they
    are read only with ``trust_pickle=True``, and then all at once.
    """
    folder = debugger_folder(epoch_dir)
    if any(p.suffix == ".pkl" for p in folder.iterdir() if page.parse_name(p.name)):
        from endoscope.pages import pickle_pages

        if not trust_pickle:
            raise UntrustedPickleError(
                f"{str(folder)!r} holds pickle pages, and opening a pickle can run any code; if you trust where they come from, "
                f"pass trust_pickle=True, or convert them once with: endoscope pages import {folder} NEW_FOLDER"
            )
        return pickle_pages.load(folder)
    return DebugOutputs(folder)
