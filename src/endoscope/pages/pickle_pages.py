"""Pickle pages: ``page_N.pkl``, a joblib dump of datapoint index to outputs. Written on the writer thread.

Reading one can run any code, so `load` is called only where the caller has said that the pages are trusted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.errors import ConfigError, PageFormatError
from endoscope.pages import format, page, scalars
from endoscope.pages.sink import Captured, Lost, SafetensorsSink
from endoscope.pages.writer import PageWriter
from endoscope.summaries import summaries_made
from endoscope.values import DataclassValue, NamedTupleValue, PerDatapoint, WholeBatch, apply_tensor_op


def joblib() -> Any:
    try:
        import joblib
    except ImportError:
        raise ConfigError("pickle pages need joblib: pip install 'endoscope[pickle]'") from None
    return joblib


def one_datapoint(value: Any, row: int, count: int) -> Any:
    """What the reader hands out for one datapoint of a batch, from the value in memory."""
    if isinstance(value, WholeBatch):
        return one_datapoint(value.value, 0, 1)
    if isinstance(value, PerDatapoint):
        return one_datapoint(value[row] if len(value) == count else [*value], 0, 1)
    if isinstance(value, torch.Tensor) and value.is_nested:  # its rows have no shape in common: all of it, for everyone
        return value
    if count > 1 and isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == count:
        return scalars.one_row(value, row).clone()  # a slice alone would take the whole batch's bytes into the pickle
    if count > 1 and isinstance(value, np.ndarray) and value.ndim and value.shape[0] == count:
        return value[row : row + 1].copy() if value.dtype.kind in "biufc" else value
    return _inside(value, row, count)


def _inside(value: Any, row: int, count: int) -> Any:
    if isinstance(value, DataclassValue):
        return DataclassValue(value._type, {k: one_datapoint(v, row, count) for k, v in value._fields.items()})
    if isinstance(value, dict):
        return {k: one_datapoint(v, row, count) for k, v in value.items()}
    if isinstance(value, NamedTupleValue):
        return NamedTupleValue(value._type, value._fields, [one_datapoint(v, row, count) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)(one_datapoint(v, row, count) for v in value)
    return value


class _Packed:
    """Pickles as something that unpickles to the tensor: torch's own way fails for its newer dtypes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        t = self.tensor
        if t.layout is not torch.strided or t.is_quantized:
            kind, parts, about = scalars.take_apart(t)
            return _put_together, ({"$": kind, **about}, {k: _Packed(v) for k, v in parts.items()})
        return _unpack, (scalars.as_bytes(t).numpy(), format.NAMES[t.dtype], tuple(t.shape))


def _unpack(data: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = format.DTYPES[dtype].torch
    return torch.frombuffer(data, dtype=kind).reshape(shape) if data.size else torch.empty(shape, dtype=kind)


def _put_together(node: dict[str, Any], parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return scalars.put_together(node, parts)


_PICKLED_BY_TORCH = frozenset((
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
))  # fmt: skip


def _picklable(value: Any) -> Any:
    """A tensor of a dtype that torch cannot unpickle is packed; the rest is left to torch."""
    if not isinstance(value, torch.Tensor) or value.is_quantized or value.dtype in _PICKLED_BY_TORCH:
        return value
    return _Packed(value)


class PickleSink:
    """Collects a page in memory and dumps it when it is full, and whenever a flush asks for it."""

    def __init__(self, folder: Path, *, page_size: int, rank: int | None, first_page: int = 0) -> None:
        self.folder = folder
        self.page_size = page_size
        self.rank = rank
        self._joblib = joblib()
        self._next, self._size = first_page, 0
        self._path: Path | None = None  # of the page, once it has been flushed
        self._part = folder / f".{secrets.token_hex(8)}.pkl.part"
        self._page: dict[int, Any] = {}
        self.unsaved = 0

    def append(self, record: Captured) -> None:
        if self._page and self._size + record.nbytes > self.page_size:
            self._turn()
        indices = record.idx if isinstance(record.idx, list) else [record.idx]
        values = {name: summaries_made(value) for name, value in record.values().items()}
        for row, idx in enumerate(indices):
            outputs = {name: one_datapoint(value, row, len(indices)) for name, value in values.items()}
            self._page[idx] = apply_tensor_op(_picklable, outputs)
        self._size += record.nbytes
        self.unsaved += 1

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
                self._path = self._named()
            else:
                os.replace(self._part, self._path)
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
        self.unsaved = 0

    def _named(self) -> Path:
        """Give the finished part a page's name that no other writer has taken."""
        while True:
            path = self.folder / f"{page.page_name(self._next, self.rank)}.pkl"
            self._next += 1
            with contextlib.suppress(FileExistsError):  # another debugger writes into this folder, too
                _rename_to_new(self._part, path)
                return path

    def _turn(self) -> None:
        self.flush()
        self._page, self._size, self._path = {}, 0, None

    def close(self, *, dropped: int) -> None:
        self._turn()
        page.sync_folder(self.folder)


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


def load(folder: Path) -> Mapping[int, dict[str, Any]]:
    """Every pickle page of a folder, merged. Runs whatever code the pickles hold."""
    merged: dict[int, dict[str, Any]] = {}
    for path in sorted(
        (p for p in folder.iterdir() if p.suffix == ".pkl" and page.parse_name(p.name)),
        key=lambda p: page.order(page.parse_name(p.name)),
    ):
        try:
            held = joblib().load(path)
        except Exception as e:  # a pickle is a program: it can raise anything
            raise PageFormatError(f"{path.name} cannot be unpickled: {type(e).__name__}: {e}") from e
        if not isinstance(held, dict):
            raise PageFormatError(
                f"{path.name} holds a {type(held).__name__}, not a dict of datapoint index to outputs"
            )
        merged.update(held)
    return dict(sorted(merged.items()))


def convert(source: Path, target: Path, *, page_size: int = 100 << 20) -> int:
    """Write trusted pickle pages again as safetensors pages; returns the number of datapoints."""
    writer = PageWriter(SafetensorsSink(target, page_size=page_size, rank=None), queue_bytes=256 << 20)
    held = load(source)
    try:
        for idx, outputs in held.items():
            named = outputs if isinstance(outputs, dict) else {"outputs": outputs}
            writer.put(int(idx), {str(name): snapshot(value) for name, value in named.items()}, {})
    finally:
        writer.close()
    if writer.counts.lost:
        raise PageFormatError(f"{writer.counts.lost} datapoints could not be written into {str(target)!r}")
    return len(held)
