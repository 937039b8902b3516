"""Datapoints: the items of any dataset in one shape, ``{"inputs", "labels", "meta_info": {"idx", ...}}``.

Runs in the workers of a DataLoader. ``batches`` joins datapoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from endoscope import ranks
from endoscope.errors import ConfigError, DatapointError
from endoscope.runners.config.kinds import shown, type_name

INPUT_NAMES = ("inputs", "input", "image", "images", "img", "pixel_values", "x", "data")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "mask", "masks")
TEXT_NAME = "input_ids"
"""In a dict with this key, every tensor except the labels is an input, as text models expect."""

ADAPTER = (
    "write an adapter: a Dataset whose __getitem__ returns {'inputs': ..., 'labels': ..., 'meta_info': {}}, "
    "or a collate_fn in the dataloader node"
)

Datapoint = dict[str, Any]


class Parts(NamedTuple):
    """The parts of an item, or of a batch of a user's ``collate_fn``."""

    inputs: Any
    labels: Any
    meta_info: dict[str, Any]


class NumberedItem(NamedTuple):
    """An unchanged item of the dataset with its position, for a user's own ``collate_fn``."""

    item: Any
    idx: int | None


def datapoint(item: Any, idx: int | None = None) -> Datapoint:
    """A dataset's item as a datapoint; ``idx`` is its index unless the item has its own.

    >>> datapoint((image, 3), 17)
    {'inputs': image, 'labels': 3, 'meta_info': {'idx': 17}}
    >>> datapoint({"image": image, "label": 3, "path": "a.png"}, 17)
    {'inputs': image, 'labels': 3, 'meta_info': {'path': 'a.png', 'idx': 17}}
    >>> datapoint({"input_ids": ids, "attention_mask": mask, "label": 1}, 17)["inputs"]
    {'input_ids': ids, 'attention_mask': mask}
    >>> datapoint(image, 17)
    {'inputs': image, 'labels': None, 'meta_info': {'idx': 17}}

    A tuple is (input, target) or (input, target, meta); meta is a dict of fields or one value. A dict without
    ``inputs`` and ``input_ids`` must have exactly one of `INPUT_NAMES`, and at most one of `LABEL_NAMES`. All other
    keys become fields of ``meta_info``.
    """
    parts = parts_of(item)
    return {
        "inputs": parts.inputs,
        "labels": parts.labels,
        "meta_info": {**parts.meta_info, "idx": index_of(parts.meta_info, idx)},
    }


def index_of(meta_info: Mapping[str, Any], position: int | None) -> int:
    """A datapoint's own index, or else its position."""
    idx = meta_info.get("idx", position)
    if idx is None:
        raise DatapointError(
            "several workers or ranks cannot number the items of an iterable dataset: each would begin at 0\n"
            "give every item its own meta_info.idx, or use num_workers 0 or 1 and one process"
        )
    if isinstance(idx, (torch.Tensor, np.ndarray)) and tuple(idx.shape) in ((), (1,)):
        idx = idx.item()
    if isinstance(idx, bool) or not isinstance(idx, (int, np.integer)):
        raise DatapointError(f"meta_info.idx is {shown(idx)}; expected the datapoint's whole number")
    return int(idx)


def parts_of(item: Any) -> Parts:
    """Inputs, labels and meta_info of an item."""
    if isinstance(item, Mapping):
        return _parts_of_mapping(item)
    if isinstance(item, (tuple, list)):
        return _parts_of_tuple(item)
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return Parts(item, None, {})
    raise DatapointError(f"an item of the dataset is {shown(item)}, not a dict, a tuple or a tensor\n{ADAPTER}")


def _parts_of_tuple(item: Sequence[Any]) -> Parts:
    if not 1 <= len(item) <= 3:
        raise DatapointError(
            f"an item of the dataset is {type_name(item)} of {len(item)}; expected (input, target) or "
            f"(input, target, meta)\n{ADAPTER}"
        )
    inputs, labels, meta = (*item, None, None)[:3]
    if len(item) == 3 and not isinstance(meta, Mapping):
        meta = {"meta": meta}
    return Parts(inputs, labels, dict(meta or {}))


def _parts_of_mapping(item: Mapping[Any, Any]) -> Parts:
    meta = item.get("meta_info")
    if meta is not None and not isinstance(meta, Mapping):
        raise DatapointError(f"meta_info is {shown(meta)}; expected a dict")
    meta = dict(meta or {})
    label_names = _present(item, "labels", LABEL_NAMES)
    if len(label_names) > 1:
        raise _unclear(item, "labels", label_names, LABEL_NAMES)
    labels = item[label_names[0]] if label_names else None
    input_names, inputs = _inputs_of(item, label_names)
    rest = {key: value for key, value in item.items() if key not in (*input_names, *label_names, "meta_info")}
    if twice := sorted(map(str, rest.keys() & meta.keys())):
        raise DatapointError(f"an item of the dataset has {twice[0]!r} both in meta_info and outside; keep one of them")
    return Parts(inputs, _as_tensor(labels) if TEXT_NAME in item else labels, {**rest, **meta})


def _inputs_of(item: Mapping[Any, Any], label_names: list[str]) -> tuple[list[str], Any]:
    """The keys of the inputs, and the inputs."""
    if TEXT_NAME in item and "inputs" not in item:
        others = (*label_names, "meta_info", "idx")
        names = [name for name in item if name not in others and _is_numbers(item[name])]
        return names, {name: _as_tensor(item[name]) for name in names}
    names = _present(item, "inputs", INPUT_NAMES)
    if len(names) != 1:
        raise _unclear(item, "inputs", names, INPUT_NAMES)
    return names, item[names[0]]


def _present(item: Mapping[Any, Any], preferred: str, names: Sequence[str]) -> list[str]:
    """Which of the names are keys of the item; only the preferred one if it is."""
    return [preferred] if preferred in item else [name for name in names if name in item]


def _unclear(item: Mapping[Any, Any], what: str, matches: list[str], names: Sequence[str]) -> DatapointError:
    which = f"both {matches[0]!r} and {matches[1]!r}" if matches else f"none of {', '.join(names)}"
    keys = ", ".join(map(repr, list(item)[:12]))
    return DatapointError(f"an item of the dataset has the keys {keys}: {which} for the {what}\n{ADAPTER}")


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(type(number) in (int, float, bool) for number in value)
    return isinstance(value, (torch.Tensor, np.ndarray))


def _as_tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, list) and _is_numbers(value) else value


class _Wrapped:
    """A wrapped dataset that still has the dataset's attributes: ``classes``, ``transform``, ...

    make: called with each item and its position. name: the dataset's name in errors.
    """

    def __init__(
        self, dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
    ) -> None:
        self.dataset = dataset
        self._make = make
        self._name = name

    def _make_item(self, item: Any, idx: int | None, which: str) -> Any:
        try:
            return self._make(item, idx)
        except DatapointError as e:
            raise DatapointError(f"{self._name}, {which}: {e}") from None

    def __getattr__(self, name: str) -> Any:
        # While unpickling, before __init__, there is no dataset.
        if name == "dataset" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)


class Datapoints(_Wrapped, Dataset[Any]):
    """Datapoints of a map-style dataset; ``meta_info.idx`` is the position unless the item has its own.

    >>> Datapoints([(image, 3), (other, 5)])[1]["meta_info"]
    {'idx': 1}
    """

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int) -> Any:
        return self._make_item(self.dataset[position], int(position), f"item {position}")

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """One batch: a single call for a dataset that can read several items at once."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(positions) if callable(several) else [self.dataset[position] for position in positions]
        return [self._make_item(item, int(at), f"item {at}") for item, at in zip(items, positions, strict=True)]


class IterableDatapoints(_Wrapped, IterableDataset[Any]):
    """Datapoints of an iterable dataset, numbered in order.

    >>> [d["meta_info"]["idx"] for d in IterableDatapoints(stream)]
    [0, 1, 2]

    With several workers or ranks, each sees only a part. Then every item must have its own ``meta_info.idx``.
    """

    def __init__(
        self, dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
    ) -> None:
        super().__init__(dataset, make=make, name=name)
        self._ranks = ranks.world_size()  # here, because a worker is not in the process group

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        alone = self._ranks == 1 and (worker is None or worker.num_workers == 1)
        for position, item in enumerate(self.dataset):
            which = f"item {position}" if alone else f"item {position} of this worker"
            yield self._make_item(item, position if alone else None, which)


def adapt(
    dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
) -> Datapoints | IterableDatapoints:
    """`Datapoints` or `IterableDatapoints` of any dataset. An adapted dataset is not wrapped twice.

    >>> adapt(torchvision.datasets.MNIST("data")).classes[0]
    '0 - zero'
    """
    if isinstance(dataset, (Datapoints, IterableDatapoints)):
        return dataset if dataset._make is make else adapt(dataset.dataset, make=make, name=dataset._name)
    if isinstance(dataset, Iterator):
        raise ConfigError(
            f"the dataset is {shown(dataset)}, which can be read only once; expected a Dataset, or an IterableDataset "
            "whose __iter__ starts again"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):  # its items have no positions
        if not hasattr(dataset, "__iter__"):
            raise ConfigError(f"the dataset is {shown(dataset)}; expected a Dataset with __getitem__ and __len__")
        return IterableDatapoints(dataset, make=make, name=name)
    if not hasattr(dataset, "__len__"):
        raise ConfigError(f"the dataset, {shown(dataset)}, has no __len__; add one, or make it an IterableDataset")
    return Datapoints(dataset, make=make, name=name)


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """The class names of a dataset: its ``class_names`` or ``classes``, those of the ``dataset`` that it wraps, or
    those that all its ``datasets`` share.

    >>> class_names(torch.utils.data.Subset(dataset, range(100)))
    ('cat', 'dog')
    """
    for name in ("class_names", "classes"):
        names = getattr(dataset, name, None)
        if isinstance(names, (list, tuple)) and names and all(isinstance(one, str) for one in names):
            return tuple(names)
    joined = getattr(dataset, "datasets", None)
    if isinstance(joined, (list, tuple)) and joined:
        different = set(map(class_names, joined))
        return different.pop() if len(different) == 1 else None
    inner = getattr(dataset, "dataset", None)
    return None if inner is None else class_names(inner)
