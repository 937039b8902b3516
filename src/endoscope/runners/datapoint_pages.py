"""What the viewer shows beside the debuggers' outputs, in pages of their own: inputs, labels, meta_info; outputs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from endoscope.debuggers.indices import datapoint_index
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.tensors import is_namedtuple, snapshot
from endoscope.values import per_datapoint

Sample = int | Literal["all"] | None
"""How many datapoints are kept: the first n, all, or none."""
_MB = 1024 * 1024


class DatapointPages:
    """Keeps some members of the first datapoints that pass, under their names."""

    def __init__(self, folder: Path, members: Sequence[str], sample: Sample) -> None:
        self._members = members
        self._left = float("inf") if sample == "all" else float(sample or 0)
        self._store = PageStore(folder, StoreSettings(100 * _MB, 64 * _MB, overwrite=True)) if self._left else None
        if self._store is not None:
            self._store.start()

    def add(self, datapoint: dict[str, Any]) -> None:
        """Queue a batch, or the part of it that is still wanted."""
        if self._store is None or not self._left:
            return
        idx = datapoint_index(datapoint)
        batch = len(idx) if isinstance(idx, list) else 1
        wanted = int(min(batch, self._left))
        self._left -= wanted
        given = [name for name in self._members if datapoint.get(name) is not None]
        kept = {name: snapshot(_rows(datapoint[name], batch, wanted)) for name in given}
        self._store.put(idx[:wanted] if isinstance(idx, list) else idx, kept, {})

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _rows(value: Any, batch: int, wanted: int) -> Any:
    """The first rows of a batch, nested; a list with one item a datapoint is marked as such."""
    if isinstance(value, torch.Tensor):
        return value[:wanted] if value.ndim and len(value) == batch else value
    if isinstance(value, Mapping):
        return {k: _rows(v, batch, wanted) for k, v in value.items()}
    if is_namedtuple(value):
        return type(value)(*(_rows(v, batch, wanted) for v in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _rows(getattr(value, f.name), batch, wanted) for f in dataclasses.fields(value)}
        part = copy.copy(value)
        for name, rows in fields.items():
            object.__setattr__(part, name, rows)
        return part
    if isinstance(value, list) and len(value) == batch:
        return per_datapoint(value[:wanted])
    if isinstance(value, (list, tuple)):
        return type(value)(_rows(v, batch, wanted) for v in value)
    return value
