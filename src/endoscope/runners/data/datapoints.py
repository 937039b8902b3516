"""Datapoints: what any dataset gives, in one shape: ``{"inputs", "labels", "meta_info": {"idx", ...}}``.

Runs where the dataset runs: in the workers of a DataLoader. Joining datapoints to batches is the work of ``batches``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from endoscope.errors import ConfigError, DatapointError

INPUT_NAMES = ("inputs", "input", "image", "images", "img", "pixel_values", "x", "data")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "mask", "masks")
TEXT_NAME = "input_ids"
"""In a dict with this key every tensor but the labels is an input, as models of text take them."""

ADAPTER = (
    "write an adapter: a Dataset whose __getitem__ returns {'inputs': ..., 'labels': ..., 'meta_info': {}}, "
    "or a collate_fn in the dataloader node"
)
_FIELDS = ("inputs", "labels", "meta_info")
_WRAPPED_MOST = 8  # datasets in datasets that are looked through

Datapoint = dict[str, Any]


class Parts(NamedTuple):
    """What an item, or a whole batch of a user's ``collate_fn``, is made of."""

    inputs: Any
    labels: Any
    meta_info: dict[str, Any]


class NumberedItem(NamedTuple):
    """An item as the dataset gave it, and its position: what a user's own ``collate_fn`` starts from."""

    item: Any
    idx: int | None


def datapoint(item: Any, idx: int | None = None) -> Datapoint:
    """A dataset's item in the one shape; ``idx`` is its index unless it brings one itself.

    >>> datapoint((image, 3), 17)
    {'inputs': image, 'labels': 3, 'meta_info': {'idx': 17}}
    >>> datapoint({"image": image, "label": 3, "path": "a.png"}, 17)
    {'inputs': image, 'labels': 3, 'meta_info': {'path': 'a.png', 'idx': 17}}
    >>> datapoint({"input_ids": ids, "attention_mask": mask, "label": 1}, 17)["inputs"]
    {'input_ids': ids, 'attention_mask': mask}
    >>> datapoint(image, 17)
    {'inputs': image, 'labels': None, 'meta_info': {'idx': 17}}

    A tuple is (input, target) or (input, target, meta), meta being a dict of fields or one value. In a dict that has
    neither ``inputs`` nor ``input_ids``, one of `INPUT_NAMES` and at most one of `LABEL_NAMES` are looked for. All
    other keys become fields of ``meta_info``.
    """
    parts = parts_of(item)
    return {
        "inputs": parts.inputs,
        "labels": parts.labels,
        "meta_info": {**parts.meta_info, "idx": index_of(parts.meta_info, idx)},
    }


def index_of(meta_info: Mapping[str, Any], position: int | None) -> int:
    """A datapoint's index: its own, or else its position."""
    idx = meta_info.get("idx", position)
    if idx is None:
        raise DatapointError(
            "several workers or ranks cannot number an iterable dataset together: each would begin at 0\n"
            "give every item its own meta_info.idx, or use num_workers 0 or 1 and one process"
        )
    if isinstance(idx, (torch.Tensor, np.ndarray)) and tuple(idx.shape) in ((), (1,)):
        idx = idx.item()
    if isinstance(idx, bool) or not isinstance(idx, (int, np.integer)):
        raise DatapointError(f"meta_info.idx is {_shown(idx)}; expected the datapoint's whole number")
    return int(idx)


def parts_of(item: Any) -> Parts:
    """Inputs, labels and meta_info of an item, wherever it keeps them."""
    if isinstance(item, Mapping):
        return _parts_of_mapping(item)
    if isinstance(item, (tuple, list)):
        return _parts_of_tuple(item)
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return Parts(item, None, {})
    raise DatapointError(f"an item of the dataset is {_shown(item)}, not a dict, a tuple or a tensor\n{ADAPTER}")


def _parts_of_tuple(item: Sequence[Any]) -> Parts:
    if not 1 <= len(item) <= 3:
        raise DatapointError(
            f"an item of the dataset is a {type(item).__name__} of {len(item)}; expected (input, target) or "
            f"(input, target, meta)\n{ADAPTER}"
        )
    inputs, labels, meta = (*item, None, None)[:3]
    if len(item) == 3 and not isinstance(meta, Mapping):
        meta = {"meta": meta}
    return Parts(inputs, labels, dict(meta or {}))


def _parts_of_mapping(item: Mapping[Any, Any]) -> Parts:
    meta = item.get("meta_info")
    if meta is not None and not isinstance(meta, Mapping):
        raise DatapointError(f"meta_info is {_shown(meta)}; expected a dict")
    label_names = [name for name in (["labels"] if "labels" in item else LABEL_NAMES) if name in item]
    if TEXT_NAME in item and "inputs" not in item:
        others = (*label_names, "meta_info", "idx")
        taken = [name for name in item if name not in others and _is_numbers(item[name])]
        inputs: Any = {name: _as_tensor(item[name]) for name in taken}
    else:
        taken = [name for name in (["inputs"] if "inputs" in item else INPUT_NAMES) if name in item]
        if len(taken) != 1:
            raise _unclear(item, "inputs", taken, INPUT_NAMES)
        inputs = item[taken[0]]
    if len(label_names) > 1:
        raise _unclear(item, "labels", label_names, LABEL_NAMES)
    rest = {key: value for key, value in item.items() if key not in (*taken, *label_names, "meta_info")}
    if twice := sorted(map(str, rest.keys() & (meta or {}).keys())):
        raise DatapointError(f"an item of the dataset has {twice[0]!r} beside meta_info and in it; keep one of them")
    labels = item[label_names[0]] if label_names else None
    if TEXT_NAME in item and _is_numbers(labels):
        labels = _as_tensor(labels)
    return Parts(inputs, labels, {**rest, **(meta or {})})


def _unclear(item: Mapping[Any, Any], what: str, found: list[str], names: Sequence[str]) -> DatapointError:
    which = f"both {found[0]!r} and {found[1]!r}" if found else f"none of {', '.join(names)}"
    keys = ", ".join(map(repr, list(item)[:12]))
    return DatapointError(f"an item of the dataset has the keys {keys}: {which} for the {what}\n{ADAPTER}")


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(type(number) in (int, float, bool) for number in value)
    return isinstance(value, (torch.Tensor, np.ndarray))


def _as_tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, list) else value


class _Wrapped:
    """Gives what the dataset has besides its items: ``classes``, ``transform``, ...

    make: what an item and its position become. name: what errors call the dataset.
    """

    def __init__(
        self, dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
    ) -> None:
        self.dataset = dataset
        self._make = make
        self._name = name

    def _made(self, item: Any, idx: int | None, which: str) -> Any:
        try:
            return self._make(item, idx)
        except DatapointError as e:
            raise DatapointError(f"{self._name}, {which}: {e}") from None

    def __getattr__(self, name: str) -> Any:
        # Before __init__, when it is unpickled, there is no dataset to ask.
        if name == "dataset" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)


class Datapoints(_Wrapped, Dataset[Any]):
    """A dataset with positions, giving datapoints; ``meta_info.idx`` is the position unless the item brings its own.

    >>> Datapoints([(image, 3), (other, 5)])[1]["meta_info"]
    {'idx': 1}
    """

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int) -> Any:
        return self._made(self.dataset[position], int(position), f"item {position}")

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """A whole batch: one call for a dataset that can read several items at once."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(positions) if callable(several) else [self.dataset[position] for position in positions]
        return [self._made(item, int(at), f"item {at}") for item, at in zip(items, positions, strict=True)]


class IterableDatapoints(_Wrapped, IterableDataset[Any]):
    """A dataset that is iterated over, giving datapoints numbered as they come.

    >>> [d["meta_info"]["idx"] for d in IterableDatapoints(stream)]
    [0, 1, 2]

    Several workers, or several ranks, each see a part and cannot count together. There every item must bring its own
    ``meta_info.idx``; one that does not is an error.
    """

    def __init__(
        self, dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
    ) -> None:
        super().__init__(dataset, make=make, name=name)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._ranks = torch.distributed.get_world_size() if several else 1

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        alone = self._ranks == 1 and (worker is None or worker.num_workers == 1)
        for position, item in enumerate(self.dataset):
            which = f"item {position}" if alone else f"item {position} of this worker"
            yield self._made(item, position if alone else None, which)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is iterated over; its items have no positions, and how many there are shows at the end."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def adapt(
    dataset: Any, *, make: Callable[[Any, int | None], Any] = datapoint, name: str = "the dataset"
) -> Datapoints | IterableDatapoints:
    """`Datapoints` or `IterableDatapoints` of any dataset; of one of these, the same again.

    >>> adapt(torchvision.datasets.MNIST("data")).classes[0]
    '0 - zero'
    """
    if isinstance(dataset, (Datapoints, IterableDatapoints)):
        return dataset if dataset._make is make else adapt(dataset.dataset, make=make, name=dataset._name)
    if isinstance(dataset, Iterator):
        raise ConfigError(
            f"the dataset is {_shown(dataset)}, which can be read once only; expected a Dataset, or an IterableDataset "
            "whose __iter__ begins anew"
        )
    if is_stream(dataset):
        if not hasattr(dataset, "__iter__"):
            raise ConfigError(f"the dataset is {_shown(dataset)}; expected a Dataset with __getitem__ and __len__")
        return IterableDatapoints(dataset, make=make, name=name)
    if not hasattr(dataset, "__len__"):
        raise ConfigError(f"the dataset, {_shown(dataset)}, has no __len__; add one, or make it an IterableDataset")
    return Datapoints(dataset, make=make, name=name)


def class_names(dataset: Any, depth: int = 0) -> tuple[str, ...] | None:
    """The names of a dataset's classes, where it has ``class_names`` or ``classes``, or the ``dataset`` in it does, or
    all of its ``datasets`` have the same.

    >>> class_names(torch.utils.data.Subset(dataset, range(100)))
    ('cat', 'dog')
    """
    for _ in range(_WRAPPED_MOST):
        for name in ("class_names", "classes"):
            names = getattr(dataset, name, None)
            if isinstance(names, (list, tuple)) and names and all(isinstance(one, str) for one in names):
                return tuple(names)
        joined = getattr(dataset, "datasets", None)
        if isinstance(joined, (list, tuple)) and joined:
            found = {class_names(one, depth + 1) for one in joined} if depth < _WRAPPED_MOST else {None}
            return found.pop() if len(found) == 1 else None
        dataset = getattr(dataset, "dataset", None)
    return None


def _shown(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (str, int, float)):
        return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
    return f"a {type(value).__name__}"
