"""Batches: several datapoints joined into one of the same shape, and moved to the model's device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from endoscope.errors import DatapointError
from endoscope.runners.data.datapoints import Datapoint, NumberedItem, index_of, parts_of
from endoscope.values import first_tensor, is_namedtuple


def collate(datapoints: Sequence[Datapoint]) -> Datapoint:
    """Join datapoints: inputs and labels as torch does it, every field of meta_info with one entry a datapoint.

    >>> batch = collate([{"inputs": torch.zeros(2), "labels": 1, "meta_info": {"idx": 7, "path": "a.png"}}])
    >>> batch["inputs"].shape, batch["labels"], batch["meta_info"]
    (torch.Size([1, 2]), tensor([1]), {'idx': tensor([7]), 'path': ['a.png']})

    Numbers and tensors of one shape in meta_info become a tensor; anything else a list, with None where a datapoint
    lacks the field.
    """
    return {
        "inputs": _joined("inputs", datapoints),
        "labels": _joined("labels", datapoints),
        "meta_info": collate_meta_info([one["meta_info"] for one in datapoints]),
    }


def collate_meta_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each field with one entry a datapoint: a tensor where possible, otherwise a list."""
    names = dict.fromkeys(name for info in infos for name in info)
    return {name: _field([info.get(name) for info in infos]) for name in names}


def _field(values: list[Any]) -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return values
    if type(first) is int:
        return torch.tensor(values) if all(-(2**63) <= value < 2**63 for value in values) else values
    if isinstance(first, (torch.Tensor, np.ndarray, np.number)):
        alike = all(value.shape == first.shape and value.dtype == first.dtype for value in values)
    else:
        alike = isinstance(first, (bool, float))
    if not alike:
        return values
    try:
        return default_collate(values)
    except (TypeError, RuntimeError):  # arrays of text, sparse tensors, tensors on several devices
        return values


def _joined(name: str, datapoints: Sequence[Datapoint]) -> Any:
    values = [one[name] for one in datapoints]
    if all(value is None for value in values):
        return None
    try:
        return default_collate(values)
    except (TypeError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise DatapointError(f"{_problem(name, values, datapoints, error)}\n{_REMEDY}") from error


_REMEDY = "make them alike in the dataset, or give the dataloader node a 'collate_fn' that joins them"


def _problem(name: str, values: list[Any], datapoints: Sequence[Datapoint], error: Exception) -> str:
    """The two datapoints that do not go together, or else what torch said."""
    first = datapoints[0]["meta_info"].get("idx")
    for value, one in zip(values[1:], datapoints[1:], strict=True):
        if (found := _unlike(values[0], value, name)) is not None:
            where, a, b = found
            second = one["meta_info"].get("idx")
            return f"{where}: {a} for datapoint {first} and {b} for datapoint {second} do not make a batch"
    return f"{name} of the datapoints do not make a batch: {str(error).splitlines()[0]}"


def _unlike(a: Any, b: Any, path: str) -> tuple[str, str, str] | None:
    """Where two values differ in type, length or shape, and how."""
    if type(a) is not type(b):
        return path, _shape(a), _shape(b)
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return None if a.shape == b.shape else (path, _shape(a), _shape(b))
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            return path, f"keys {sorted(map(str, a))}", f"keys {sorted(map(str, b))}"
        inside = [(_unlike(a[key], b[key], f"{path}.{key}")) for key in a]
        return next((found for found in inside if found is not None), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return path, f"length {len(a)}", f"length {len(b)}"
        inside = [_unlike(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return next((found for found in inside if found is not None), None)
    return None


def _shape(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


class UserCollate:
    """A user's ``collate_fn`` on the dataset's own items; its batch, in whatever shape, becomes one of ours.

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
            raise DatapointError(f"collate_fn gave meta_info.idx as a {type(idx).__name__}; expected one for each item")
        numbers = torch.tensor([index_of({"idx": one}, None) for one in listed], dtype=torch.int64)
        return {"inputs": parts.inputs, "labels": parts.labels, "meta_info": {**meta, "idx": numbers}}


def _own_index(numbered: NumberedItem) -> int:
    """Found without a full look at the item: only the ``collate_fn`` needs to understand it."""
    item = numbered.item
    if isinstance(item, (tuple, list)) and len(item) == 3:
        item = item[2]
    if not isinstance(item, Mapping):
        return index_of({}, numbered.idx)
    meta = item.get("meta_info")
    return index_of({**item, **meta} if isinstance(meta, Mapping) else item, numbered.idx)


def _check_size(inputs: Any, labels: Any, given: int) -> None:
    """A batch that lost items would give the others the wrong indices. A list or tuple as long as there are items has
    one entry an item, as for detection, whatever is in it; anything else goes by the rows of its first tensor."""
    if any(_is_plain_sequence(value) and len(value) == given for value in (inputs, labels)):
        return
    pairs = [(value, first_tensor(value)) for value in (inputs, labels)]
    found = [(value, len(tensor)) for value, tensor in pairs if tensor is not None and tensor.ndim]
    if found and all(rows != given for _, rows in found):
        value, rows = found[0]
        held = f"a {type(value).__name__} of {len(value)} with " if _is_plain_sequence(value) else ""
        raise DatapointError(
            f"collate_fn was given {given} items and returned {held}tensors of length {rows}: which is which?\n"
            "return a dict with 'inputs', 'labels' and 'meta_info': {'idx': [...]}"
        )


def _is_plain_sequence(value: Any) -> bool:
    """A list or tuple, but none whose entries have names: those are never one an item."""
    return isinstance(value, (list, tuple)) and not is_namedtuple(value)


def to_device(datapoint: Datapoint, device: torch.device | str) -> Datapoint:
    """A datapoint with its tensors on a device; the copies are not waited for.

    >>> to_device(batch, "cuda")["inputs"].device
    device(type='cuda', index=0)

    ``meta_info`` stays where it is: it is read on the host, and would have to be waited for.
    """
    return {name: value if name == "meta_info" else _moved(value, device) for name, value in datapoint.items()}


def _moved(value: Any, device: torch.device | str) -> Any:
    """Containers are rebuilt as what they were, because the model is given them."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        return value.to(device)  # a BatchEncoding, a graph, a PackedSequence
    if is_namedtuple(value):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, Mapping):
        moved = {key: _moved(item, device) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return moved
        clone = copy.copy(value)
        clone.update(moved)
        return clone
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, _moved(getattr(value, field.name), device))
        return twin
    return value
