"""Pickle pages: ``page_N.pkl``, a joblib dump of datapoint index to outputs. `pickle_sink` writes them.

Reading one can run any code, so `load` is called only when the caller has said that the pages are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endoscope.errors import ConfigError, PageFormatError
from endoscope.pages import composites, format
from endoscope.pages.files import list_folder
from endoscope.values import PerDatapoint, WholeBatch, parts_of


def joblib() -> Any:
    try:
        import joblib
    except ImportError:
        raise ConfigError("pickle pages need joblib: pip install 'endoscope[pickle]'") from None
    return joblib


# ---------------------------------------------------------------- reading
def load(folder: Path) -> Mapping[int, dict[str, Any]]:
    """Every pickle page of a folder, merged. Runs whatever code the pickles hold."""
    merged: dict[int, dict[str, Any]] = {}
    for name in list_folder(str(folder)).pickles:
        try:
            page = joblib().load(folder / name)
        except Exception as e:  # a pickle is a program: it can raise anything
            raise PageFormatError(f"{name} cannot be unpickled: {type(e).__name__}: {e}") from e
        if not isinstance(page, dict):
            raise PageFormatError(f"{name} holds a {type(page).__name__}, not a dict of datapoint index to outputs")
        merged.update(page)
    return dict(sorted(merged.items()))


def convert(source: Path, target: Path, *, page_size: int = 100 << 20) -> int:
    """Write trusted pickle pages again as safetensors pages; returns the number of datapoints."""
    from endoscope.capturing.snapshot import snapshot
    from endoscope.pages.sink import SafetensorsSink
    from endoscope.pages.writer import PageWriter

    writer = PageWriter(SafetensorsSink(target, page_size=page_size, rank=None), queue_bytes=256 << 20)
    datapoints = load(source)
    try:
        for idx, outputs in datapoints.items():
            named = outputs if isinstance(outputs, dict) else {"outputs": outputs}
            writer.put(int(idx), {str(name): snapshot(value) for name, value in named.items()}, {})
    finally:
        writer.close()
    if writer.counts.lost:
        raise PageFormatError(f"{writer.counts.lost} datapoints could not be written into {str(target)!r}")
    return len(datapoints)


# ---------------------------------------------------------------- one datapoint of a batch
def one_datapoint(value: Any, row: int, count: int) -> Any:
    """The part of a batch's value in memory that belongs to datapoint ``row``: what a reader returns for it."""
    if isinstance(value, WholeBatch):
        return one_datapoint(value.value, 0, 1)
    if isinstance(value, PerDatapoint):
        return one_datapoint(value[row] if len(value) == count else [*value], 0, 1)
    if isinstance(value, torch.Tensor):
        return _row_of_tensor(value, row, count)
    if isinstance(value, np.ndarray):
        sliced = count > 1 and value.shape[:1] == (count,) and value.dtype.kind in "biufc"
        return value[row : row + 1].copy() if sliced else value
    parts = parts_of(value)
    if parts is None:
        return value
    return parts.rebuild([*parts.hashed], [one_datapoint(v, row, count) for v in parts.values])


def _row_of_tensor(t: torch.Tensor, row: int, count: int) -> torch.Tensor:
    if count == 1 or t.is_nested or t.shape[:1] != (count,):  # the rows of a nested tensor share no shape
        return t
    return composites.one_row(t, row).clone()  # a view would take the bytes of the whole batch into the pickle


# ---------------------------------------------------------------- tensors that torch cannot unpickle
_PICKLED_BY_TORCH = frozenset((
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
))  # fmt: skip


def picklable(value: Any) -> Any:
    """A tensor of a newer dtype is packed into bytes; everything else is left to torch."""
    if not isinstance(value, torch.Tensor) or value.is_quantized or value.dtype in _PICKLED_BY_TORCH:
        return value
    return _Packed(value)


class _Packed:
    """Pickles as a call that rebuilds the tensor. Pages name the two functions below: they must keep their names."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        t = self.tensor
        if t.layout is not torch.strided or t.is_quantized:
            kind, parts, facts = composites.take_apart(t)
            return _put_together, ({"$": kind, **facts}, {k: _Packed(v) for k, v in parts.items()})
        return _unpack, (composites.as_bytes(t).numpy(), format.NAMES[t.dtype], tuple(t.shape))


def _unpack(data: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = format.DTYPES[dtype].torch
    return torch.frombuffer(data, dtype=kind).reshape(shape) if data.size else torch.empty(shape, dtype=kind)


def _put_together(node: dict[str, Any], parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return composites.put_together(node, parts)
