"""The export formats: .safetensors, .npz and .jsonl.

Each writer takes datapoints one at a time and keeps only names and scalars in memory. The file appears under its name
when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from endoscope.commands.arrays import Array, as_numpy, dense, short
from endoscope.commands.describe import as_json, free_name
from endoscope.commands.text import printable
from endoscope.errors import ConfigError, EndoscopeError, FolderInUseError, PageError
from endoscope.pages.format import DTYPES, NAMES

MAX_HEADER = 100_000_000
"""Bytes of the largest header that every safetensors reader accepts."""


class Export(ABC):
    """A file being written; ``changes`` counts the tensors that were converted, by conversion."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], opened: contextlib.ExitStack) -> None:
        """``opened`` closes what the subclass opens."""
        self.about = dict(about)
        self.tensors = 0
        self.changes: Counter[str] = Counter()
        self._file = file

    @abstractmethod
    def add(self, idx: int, outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        """Add one datapoint."""

    def finish(self) -> None:  # noqa: B027  # optional
        """Write what follows the last datapoint."""

    def _reference(self, value: Any, name: str) -> dict[str, Any]:
        """Write one tensor; the reference that replaces it in the JSON."""
        self.tensors += 1
        where = self._array(value, name)
        return {"$": "tensor", **where, "dtype": short(value.dtype), "shape": list(value.shape)}

    @abstractmethod
    def _array(self, value: Any, name: str) -> dict[str, Any]:
        """Write one tensor or array; returns its name in the file, as part of the reference."""

    def _changed(self, change: str | None) -> None:
        if change is not None:
            self.changes[change] += 1


@contextlib.contextmanager
def open_export(path: Path, about: Mapping[str, Any], *, overwrite: bool) -> Iterator[Export]:
    """Write to ``path`` in the format of its suffix. The file appears when the block ends without an error."""
    formats: dict[str, type[Export]]
    formats = {".safetensors": SafetensorsExport, ".npz": NpzExport, ".jsonl": JsonLinesExport}
    if path.suffix not in formats:
        raise ConfigError(f"OUT is {str(path)!r}; expected a name that ends in {', '.join(formats)}")
    if path.exists() and not overwrite:
        raise FolderInUseError(f"{str(path)!r} already exists; choose another name, or add --overwrite")
    part = path.with_name(f".{path.name}.part")
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(part, "wb"))
            export = formats[path.suffix](file, {k: v for k, v in about.items() if v is not None}, opened)
            yield export
            export.finish()
        os.replace(part, path)
    except EndoscopeError:
        raise
    except OSError as e:
        raise PageError(f"cannot write {str(path)!r}: {e.strerror}") from e
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


class _TensorExport(Export):
    """A file of tensors by name, with everything else as JSON.

    Names are made `printable`: safetensors refuses lone surrogates, and zip cuts a name at its first NUL.
    """

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], opened: contextlib.ExitStack) -> None:
        super().__init__(file, about, opened)
        self._datapoints: dict[int, Any] = {}
        self._names: set[str] = set()

    def add(self, idx: int, outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        values = {name: as_json(value, self._reference, f"{idx}/{name}") for name, value in outputs.items()}
        self._datapoints[idx] = {"outputs": values, "notes": as_json(notes, self._reference, f"{idx}/notes")}

    def _array(self, value: Any, name: str) -> dict[str, Any]:
        name = free_name(printable(name), self._names)
        self._names.add(name)
        self._write(name, value)
        return {"name": name}

    @abstractmethod
    def _write(self, name: str, value: Any) -> None:
        """Write one tensor or array under a name."""


class SafetensorsExport(_TensorExport):
    """Tensors as ``idx/debugger/path``; everything else as JSON in the metadata, under ``datapoints``."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], opened: contextlib.ExitStack) -> None:
        super().__init__(file, about, opened)
        # One file per element size. Joined, the widest first, every tensor is aligned without gaps.
        self._data: dict[int, IO[bytes]] = {}
        for size in (8, 4, 2, 1):
            self._data[size] = opened.enter_context(tempfile.TemporaryFile(dir=Path(file.name).parent))  # noqa: SIM115
        self._entries: dict[str, tuple[str, list[int], int, int, int]] = {}

    def _write(self, name: str, value: Any) -> None:
        t, change = dense(torch.from_numpy(value) if isinstance(value, np.ndarray) else value)
        self._changed(change)
        if t.is_complex() and t.dtype is not torch.complex64:
            self._changed(f"{short(t.dtype)} stored as pairs of real numbers in a last dimension of 2")
            t = torch.view_as_real(t)
        elif DTYPES[NAMES[t.dtype]].safetensors == "U8" and t.dtype is not torch.uint8:
            self._changed(f"{short(t.dtype)} converted to float32")
            t = t.float()
        data = t.contiguous().reshape(-1).view(torch.uint8).numpy()
        file = self._data[t.element_size()]
        tag = DTYPES[NAMES[t.dtype]].safetensors
        self._entries[name] = (tag, list(t.shape), t.element_size(), file.tell(), len(data))
        file.write(data.data)

    def finish(self) -> None:
        starts, end = {}, 0
        for size, file in self._data.items():
            starts[size], end = end, end + file.tell()
        metadata = {"format": "pt", **{k: str(v) for k, v in self.about.items()}}
        metadata["datapoints"] = json.dumps(self._datapoints, allow_nan=False)
        header: dict[str, Any] = {"__metadata__": metadata}
        for name, (dtype, shape, size, at, nbytes) in self._entries.items():
            first = starts[size] + at
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, first + nbytes]}
        text = json.dumps(header, allow_nan=False).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        if len(text) > MAX_HEADER:
            raise ConfigError(
                f"names and scalars take {len(text):,} bytes; the header of a .safetensors file holds {MAX_HEADER:,}\n"
                "choose fewer datapoints with --index, or export the scalars to .jsonl"
            )
        self._file.write(len(text).to_bytes(8, "little") + text)
        for file in self._data.values():
            file.seek(0)
            shutil.copyfileobj(file, self._file, 1 << 20)


class NpzExport(_TensorExport):
    """Arrays as ``idx/debugger/path``; everything else as JSON in the text array ``scalars``."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], opened: contextlib.ExitStack) -> None:
        super().__init__(file, about, opened)
        self._zip = opened.enter_context(zipfile.ZipFile(file, "w"))

    def _write(self, name: str, value: Any) -> None:
        array: Array = value
        if isinstance(value, torch.Tensor):
            t, change = dense(value)
            self._changed(change)
            array, change = as_numpy(t)
            self._changed(change)
        with self._zip.open(f"{name}.npy", "w", force_zip64=True) as f:
            np.lib.format.write_array(f, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)

    def finish(self) -> None:
        self._write("scalars", np.array(json.dumps({**self.about, "datapoints": self._datapoints}, allow_nan=False)))
        self._zip.close()


class JsonLinesExport(Export):
    """Scalars and texts, one line per datapoint; of a tensor only dtype and shape."""

    def add(self, idx: int, outputs: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        values = {name: as_json(value, self._reference, name) for name, value in outputs.items()}
        line = {"idx": idx, **self.about, "outputs": values, "notes": as_json(notes, self._reference, "notes")}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def _array(self, value: Any, name: str) -> dict[str, Any]:
        self._changed("left out, as .jsonl holds only scalars and texts")
        return {}
