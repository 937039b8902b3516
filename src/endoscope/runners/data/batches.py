"""Batches: datapoints joined into one of the same shape, and moved to the model's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from endoscope.errors import DatapointError
from endoscope.runners.config.kinds import type_name
from endoscope.runners.data.containers import map_items
from endoscope.runners.data.datapoints import Datapoint, NumberedItem, index_of, parts_of
from endoscope.values import first_tensor, is_namedtuple


def collate(datapoints: Sequence[Datapoint]) -> Datapoint:
    """Join datapoints: inputs and labels as torch does it, each field of meta_info with one entry per datapoint.

    >>> batch = collate([{"inputs": torch.zeros(2), "labels": 1, "meta_info": {"idx": 7, "path": "a.png"}}])
    >>> batch["inputs"].shape, batch["labels"], batch["meta_info"]
    (torch.Size([1, 2]), tensor([1]), {'idx': tensor([7]), 'path': ['a.png']})

    In meta_info, numbers and tensors of equal shape become a tensor. Anything else becomes a list, with None for a
    datapoint without the field.
    """
    infos = [one["meta_info"] for one in datapoints]
    names = dict.fromkeys(name for info in infos for name in info)
    return {
        "inputs": _joined("inputs", datapoints),
        "labels": _joined("labels", datapoints),
        "meta_info": {name: _field([info.get(name) for info in infos]) for name in names},
    }


def _field(values: list[Any]) -> Any:
    """One field of all datapoints: a tensor if possible, otherwise a list."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return values
    if isinstance(first, (torch.Tensor, np.ndarray, np.number)):
        alike = all(value.shape == first.shape and value.dtype == first.dtype for value in values)
    else:
        alike = type(first) in (bool, int, float)
    try:
        return default_collate(values) if alike else values
    except (TypeError, ValueError, RuntimeError):  # integers beyond int64, arrays of text, sparse tensors
        return values


def _joined(name: str, datapoints: Sequence[Datapoint]) -> Any:
    values = [one[name] for one in datapoints]
    if all(value is None for value in values):
        return None
    try:
        return default_collate(values)
    except (TypeError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise DatapointError(f"{_problem(name, values, datapoints, error)}\n{_REMEDY}") from error


_REMEDY = "give them equal shapes in the dataset, or set a 'collate_fn' in the dataloader node that joins them"


def _problem(name: str, values: list[Any], datapoints: Sequence[Datapoint], error: Exception) -> str:
    """The first two datapoints that differ, or else torch's message."""
    first, *others = (one["meta_info"].get("idx") for one in datapoints)
    for value, idx in zip(values[1:], others, strict=True):
        if (difference := _difference(values[0], value, name)) is not None:
            where, a, b = difference
            return f"{where}: {a} for datapoint {first} and {b} for datapoint {idx} do not make a batch"
    return f"{name} of the datapoints do not make a batch: {str(error).splitlines()[0]}"


def _difference(a: Any, b: Any, path: str) -> tuple[str, str, str] | None:
    """Where two values first differ in type, length or shape, and how."""
    if type(a) is not type(b):
        return path, _shape(a), _shape(b)
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return None if a.shape == b.shape else (path, _shape(a), _shape(b))
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            return path, f"keys {sorted(map(str, a))}", f"keys {sorted(map(str, b))}"
        return _first_difference([(f"{path}.{key}", a[key], b[key]) for key in a])
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return path, f"length {len(a)}", f"length {len(b)}"
        return _first_difference([(f"{path}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))])
    return None


def _first_difference(pairs: list[tuple[str, Any, Any]]) -> tuple[str, str, str] | None:
    return next((difference for where, a, b in pairs if (difference := _difference(a, b, where))), None)


def _shape(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"shape {tuple(value.shape)}"
    return "None" if value is None else type_name(value)


class UserCollate:
    """Applies a user's ``collate_fn`` to the dataset's own items and turns its batch into a datapoint.

    >>> UserCollate(pad)([NumberedItem((text, 1), 0), NumberedItem((other, 0), 1)])["meta_info"]
    {'idx': tensor([0, 1])}
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, numbered: Sequence[NumberedItem]) -> Datapoint:
        parts = parts_of(self._collate_fn([one.item for one in numbered]))
        meta = parts.meta_info
        if "idx" not in meta:
            _check_size(parts.inputs, parts.labels, len(numbered))
            meta = {**meta, "idx": [_own_index(one) for one in numbered]}
        idx = meta["idx"]
        listed = idx.tolist() if isinstance(idx, (torch.Tensor, np.ndarray)) else idx
        if not isinstance(listed, (list, tuple)):
            raise DatapointError(f"collate_fn gave meta_info.idx as {type_name(idx)}; expected one per item")
        numbers = torch.tensor([index_of({"idx": one}, None) for one in listed], dtype=torch.int64)
        return {"inputs": parts.inputs, "labels": parts.labels, "meta_info": {**meta, "idx": numbers}}


def _own_index(numbered: NumberedItem) -> int:
    """The index of an item that only the ``collate_fn`` needs to understand."""
    item = numbered.item
    if isinstance(item, (tuple, list)) and len(item) == 3:
        item = item[2]
    if not isinstance(item, Mapping):
        return index_of({}, numbered.idx)
    meta = item.get("meta_info")
    return index_of({**item, **meta} if isinstance(meta, Mapping) else item, numbered.idx)


def _check_size(inputs: Any, labels: Any, count: int) -> None:
    """Refuse a batch that lost items: the others would get wrong indices.

    A list or tuple with as many entries as items has one entry per item, as in detection. Anything else, as a
    namedtuple, counts by the rows of its first tensor.
    """
    sizes = []
    for value in (inputs, labels):
        if isinstance(value, (list, tuple)) and not is_namedtuple(value) and len(value) == count:
            return
        if (tensor := first_tensor(value)) is not None and tensor.ndim:
            sizes.append(len(tensor))
    if sizes and count not in sizes:
        raise DatapointError(
            f"collate_fn got {count} items and returned tensors of length {sizes[0]}: which is which?\n"
            "return a dict with 'inputs', 'labels' and 'meta_info': {'idx': [...]}"
        )


def to_device(datapoint: Datapoint, device: torch.device | str) -> Datapoint:
    """A datapoint with its tensors on a device, copied without blocking.

    >>> to_device(batch, "cuda")["inputs"].device
    device(type='cuda', index=0)

    ``meta_info`` stays on the host, where it is read.
    """
    return {name: value if name == "meta_info" else _moved(value, device) for name, value in datapoint.items()}


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        return value.to(device)  # a BatchEncoding, a graph, a PackedSequence
    return map_items(value, lambda item, _: _moved(item, device))
