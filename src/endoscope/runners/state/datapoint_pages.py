"""Pages with what the viewer shows next to the captures: inputs, labels and meta_info; outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.debuggers.indices import datapoint_index
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runners.data.containers import map_items
from endoscope.values import PerDatapoint, is_namedtuple, per_datapoint

Sample = int | Literal["all"] | None
"""How many datapoints to store: the first n, all, or none."""
_MB = 1024 * 1024


class DatapointPages:
    """Stores some members of the first datapoints, under their names."""

    def __init__(self, folder: Path, members: Sequence[str], sample: Sample, *, listed: bool = False) -> None:
        """listed: whether a user's ``collate_fn`` made the batches, in which lists may have one entry per item."""
        self._members = members
        self._listed = listed
        self._per_datapoint: dict[tuple[Any, ...], bool] = {}  # by the place of a list: has it one entry per datapoint?
        self._remaining = float("inf") if sample == "all" else float(sample or 0)
        self._store = PageStore(folder, StoreSettings(100 * _MB, 64 * _MB, overwrite=True)) if self._remaining else None
        if self._store is not None:
            self._store.start()

    def add(self, datapoint: dict[str, Any]) -> None:
        """Queue a batch, or its first datapoints if fewer remain."""
        if self._store is None or not self._remaining:
            return
        idx = datapoint_index(datapoint)
        batch = len(idx) if isinstance(idx, list) else 1
        count = int(min(batch, self._remaining))
        self._remaining -= count
        values = {name: datapoint[name] for name in self._members if datapoint.get(name) is not None}
        if "meta_info" in values:
            values["meta_info"] = _marked(values["meta_info"], batch)
        rows = {name: snapshot(self._rows(value, batch, count, (name,))) for name, value in values.items()}
        self._store.put(idx[:count] if isinstance(idx, list) else idx, rows, {})

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _rows(self, value: Any, batch: int, count: int, path: tuple[Any, ...]) -> Any:
        """The first rows of a nested batch; a list with one entry per datapoint is marked as such."""
        if isinstance(value, torch.Tensor):
            return value[:count] if value.ndim and len(value) == batch else value
        if isinstance(value, (list, tuple)) and not is_namedtuple(value) and self._is_per_datapoint(value, batch, path):
            return per_datapoint([*value[:count]])
        contents = dict(value) if isinstance(value, Mapping) else value
        return map_items(contents, lambda item, key: self._rows(item, batch, count, (*path, key)))

    def _is_per_datapoint(self, value: Any, batch: int, path: tuple[Any, ...]) -> bool:
        """Whether a list has one entry per datapoint (texts, the boxes of each image), or is a structure (the heads of
        a model, two views of the inputs) whose tensors have one row per datapoint.

        A list with another length than the batch is a structure. If the lengths are equal, the batches before decide,
        or else the contents: texts, and tensors with other numbers of rows, are entries. Tensors with one row per
        datapoint are a structure, unless the list is a detector's list of dicts or comes from a user's ``collate_fn``.
        """
        if isinstance(value, PerDatapoint):
            return len(value) == batch
        if len(value) != batch:
            self._per_datapoint[path] = False
            return False
        if isinstance(value, tuple) and not self._listed:  # from a model, or from default_collate
            return False
        if not _is_structure(value, batch):
            self._per_datapoint[path] = self._per_datapoint.get(path, True)
        detections = len(path) == 1 and any(isinstance(v, Mapping) for v in value)
        return self._per_datapoint.get(path, self._listed or detections)


def _marked(meta_info: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """meta_info with its lists marked: a list of two tensors of two rows is not a structure there."""
    return {k: PerDatapoint(v) if type(v) is list and len(v) == batch else v for k, v in meta_info.items()}


def _is_structure(value: list[Any], batch: int) -> bool:
    """Whether all leaves are tensors with one row per datapoint; None is ignored."""
    leaves = [leaf for leaf in _leaves(value) if leaf is not None]
    return bool(leaves) and all(isinstance(t, torch.Tensor) and t.ndim > 0 and len(t) == batch for t in leaves)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        yield value
        return
    for item in items:
        yield from _leaves(item)
