"""What the viewer shows beside the debuggers' outputs, in pages of their own: inputs, labels, meta_info; outputs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.debuggers.indices import datapoint_index
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.values import PerDatapoint, is_namedtuple, per_datapoint

Sample = int | Literal["all"] | None
"""How many datapoints are kept: the first n, all, or none."""
_MB = 1024 * 1024


class DatapointPages:
    """Keeps some members of the first datapoints that pass, under their names."""

    def __init__(self, folder: Path, members: Sequence[str], sample: Sample, *, listed: bool = False) -> None:
        """listed: whether a user's own ``collate_fn`` made the batches, which may be lists with an entry an item."""
        self._members = members
        self._listed = listed
        self._entries: dict[tuple[Any, ...], bool] = {}  # of lists, by their place: whether they have one a datapoint
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
        values = {name: _marked(datapoint[name], batch) if name == "meta_info" else datapoint[name] for name in given}
        kept = {name: snapshot(self._rows(value, batch, wanted, (name,))) for name, value in values.items()}
        self._store.put(idx[:wanted] if isinstance(idx, list) else idx, kept, {})

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _rows(self, value: Any, batch: int, wanted: int, path: tuple[Any, ...]) -> Any:
        """The first rows of a batch, nested; a list with one entry a datapoint is marked as such."""

        def inner(v: Any, key: Any) -> Any:
            return self._rows(v, batch, wanted, (*path, key))

        if isinstance(value, torch.Tensor):
            return value[:wanted] if value.ndim and len(value) == batch else value
        if isinstance(value, Mapping):
            return {k: inner(v, k) for k, v in value.items()}
        if is_namedtuple(value):
            return type(value)(*(inner(v, k) for k, v in enumerate(value)))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: inner(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
            part = copy.copy(value)
            for name, rows in fields.items():
                object.__setattr__(part, name, rows)
            return part
        if isinstance(value, (list, tuple)):
            if self._has_one_a_datapoint(value, batch, path):
                return per_datapoint([*value[:wanted]])
            return type(value)(inner(v, k) for k, v in enumerate(value))
        return value

    def _has_one_a_datapoint(self, value: Any, batch: int, path: tuple[Any, ...]) -> bool:
        """Whether a list has one entry a datapoint (texts, the boxes of each image), or is a structure (the heads of a
        model, two views of the inputs), whose tensors have a row a datapoint.

        Its length tells, unless it happens to be the batch's. Then what the batches before showed of it, or else:
        texts, and tensors with other numbers of rows, are entries; tensors with a row a datapoint are a structure,
        unless it is dicts that are all there is, as of a detector, or they come from a user's ``collate_fn``.
        """
        if isinstance(value, PerDatapoint):
            return len(value) == batch
        if len(value) != batch:
            self._entries[path] = False
            return False
        if isinstance(value, tuple) and not self._listed:  # of a model, or of default_collate
            return False
        if not _is_structure(value, batch):
            self._entries[path] = self._entries.get(path, True)
        detections = len(path) == 1 and any(isinstance(v, Mapping) for v in value)
        return self._entries.get(path, self._listed or detections)


def _marked(meta_info: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """A field of meta_info has one entry a datapoint: a list of two tensors of two rows is no structure there."""
    return {k: PerDatapoint(v) if type(v) is list and len(v) == batch else v for k, v in meta_info.items()}


def _is_structure(value: list[Any], batch: int) -> bool:
    """Whether a list holds tensors with a row a datapoint, and nothing else; parts that are None count for nothing."""
    leaves = [leaf for leaf in _leaves(value) if leaf is not None]
    return bool(leaves) and all(isinstance(t, torch.Tensor) and t.ndim > 0 and len(t) == batch for t in leaves)


def _leaves(value: Any) -> Iterator[Any]:
    """What is in the containers that `_rows` walks."""
    if isinstance(value, Mapping):
        inside: Any = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        yield value
        return
    for item in inside:
        yield from _leaves(item)
