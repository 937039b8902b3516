from __future__ import annotations

import pickle
from collections import UserDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from endoscope.errors import ConfigError, DatapointError
from endoscope.runners.data.datapoints import (
    ADAPTER,
    INPUT_NAMES,
    LABEL_NAMES,
    Datapoints,
    IterableDatapoints,
    NumberedItem,
    adapt,
    class_names,
    datapoint,
)

X = torch.arange(3.0)
DOCS = Path(__file__).parents[3] / "docs" / "config.md"


def refusal(item: Any, idx: int | None = 5) -> str:
    with pytest.raises(DatapointError) as caught:
        datapoint(item, idx)
    return str(caught.value)


def shape(inputs: Any = X, labels: Any = None, **meta: Any) -> dict[str, Any]:
    return {"inputs": inputs, "labels": labels, "meta_info": {"idx": 5, **meta}}


# ---- one item
@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"inputs": X, "labels": 1, "meta_info": {"path": "a"}}, shape(labels=1, path="a")),
        ({"inputs": X, "labels": 1, "meta_info": {"idx": 9}}, shape(labels=1, idx=9)),
        ({"inputs": X, "labels": 1}, shape(labels=1)),
        ({"inputs": {"a": X}, "labels": {"b": 1}}, shape(inputs={"a": X}, labels={"b": 1})),
        ({"inputs": X}, shape()),
        ({"inputs": X, "labels": 1, "meta_info": None}, shape(labels=1)),
        ({"inputs": X, "labels": 1, "path": "a"}, shape(labels=1, path="a")),
        ({"inputs": X, "labels": 1, "image": "a.png"}, shape(labels=1, image="a.png")),
        ({"inputs": X, "target": 1}, shape(labels=1)),
        ((X, 1), shape(labels=1)),
        ([X, 1], shape(labels=1)),
        ((X,), shape()),
        ((X, 1, {"path": "a"}), shape(labels=1, path="a")),
        ((X, 1, {"idx": 9}), shape(labels=1, idx=9)),
        ((X, 1, "a.png"), shape(labels=1, meta="a.png")),
        ((X, 1, None), shape(labels=1, meta=None)),
        (({"a": X}, {"b": 1}), shape(inputs={"a": X}, labels={"b": 1})),
        (namedtuple("Pair", "image label")(X, 1), shape(labels=1)),
        ({"image": X, "label": 1}, shape(labels=1)),
        ({"image": X, "mask": 1, "name": "a"}, shape(labels=1, name="a")),
        ({"x": X, "y": 1}, shape(labels=1)),
        ({"pixel_values": X, "labels": 1, "idx": 9}, shape(labels=1, idx=9)),
        ({"image": X, "id": "k"}, shape(id="k")),
        ({"image": X, "labels": 1, "label": "cat"}, shape(labels=1, label="cat")),
        (UserDict({"image": X, "label": 1}), shape(labels=1)),
        (X, shape()),
    ],
)
def test_an_item_becomes_a_datapoint(item: Any, expected: Any) -> None:
    assert repr(datapoint(item, 5)) == repr({**expected, "meta_info": datapoint(item, 5)["meta_info"]})
    assert datapoint(item, 5)["meta_info"] == expected["meta_info"]


@pytest.mark.parametrize("name", INPUT_NAMES)
@pytest.mark.parametrize("label", LABEL_NAMES)
def test_every_common_name_is_known_and_documented(name: str, label: str) -> None:
    assert datapoint({name: X, label: 1}, 5) == {"inputs": X, "labels": 1, "meta_info": {"idx": 5}}
    assert f"`{name}`" in DOCS.read_text()
    assert f"`{label}`" in DOCS.read_text()


def test_text_all_tensors_but_the_labels_are_inputs() -> None:
    ids, mask, label, position = torch.tensor([1, 2]), torch.tensor([1, 1]), torch.tensor(3), torch.tensor(8)
    item = {"input_ids": ids, "attention_mask": mask, "label": label, "text": "a b", "idx": position}
    found = datapoint(item, 5)
    assert found == {
        "inputs": {"input_ids": ids, "attention_mask": mask}, "labels": label, "meta_info": {"text": "a b", "idx": 8},
    }  # fmt: skip


def test_text_as_lists_of_numbers_becomes_tensors() -> None:
    found = datapoint({"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [2, 3], "tokens": ["a", "b"]}, 5)
    assert {name: value.tolist() for name, value in found["inputs"].items()} == {
        "input_ids": [1, 2], "attention_mask": [1, 1],
    }  # fmt: skip
    assert found["labels"].tolist() == [2, 3]
    assert found["meta_info"] == {"tokens": ["a", "b"], "idx": 5}


def test_an_array_alone_is_the_input() -> None:
    assert datapoint(np.zeros(3), 5)["inputs"].shape == (3,)


@pytest.mark.parametrize("idx", [9, np.int64(9), torch.tensor(9), torch.tensor([9]), np.array(9)])
def test_an_index_of_its_own_is_respected_in_every_form(idx: Any) -> None:
    found = datapoint({"inputs": X, "meta_info": {"idx": idx}}, 5)["meta_info"]["idx"]
    assert found == 9
    assert type(found) is int


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("text", f"an item of the dataset is 'text', not a dict, a tuple or a tensor\n{ADAPTER}"),
        (3, f"an item of the dataset is 3, not a dict, a tuple or a tensor\n{ADAPTER}"),
        (object(), f"an item of the dataset is an object, not a dict, a tuple or a tensor\n{ADAPTER}"),
        (
            (X, X, X, X),
            f"an item of the dataset is a tuple of 4; expected (input, target) or (input, target, meta)\n{ADAPTER}",
        ),
        ((), f"an item of the dataset is a tuple of 0; expected (input, target) or (input, target, meta)\n{ADAPTER}"),
        (
            {"before": X, "after": X},
            "an item of the dataset has the keys 'before', 'after': none of inputs, input, image, images, img, "
            f"pixel_values, x, data for the inputs\n{ADAPTER}",
        ),
        (
            {"image": X, "x": X},
            f"an item of the dataset has the keys 'image', 'x': both 'image' and 'x' for the inputs\n{ADAPTER}",
        ),
        (
            {"image": X, "label": 1, "mask": X},
            "an item of the dataset has the keys 'image', 'label', 'mask': both 'label' and 'mask' for the labels\n"
            f"{ADAPTER}",
        ),
        ({"inputs": X, "meta_info": 3}, "meta_info is 3; expected a dict"),
        (
            {"inputs": X, "path": 1, "meta_info": {"path": 2}},
            "an item of the dataset has 'path' both in meta_info and outside; keep one of them",
        ),
        (
            {"inputs": X, "meta_info": {"idx": "a"}},
            "meta_info.idx is 'a'; expected the datapoint's whole number",
        ),
        ({"inputs": X, "meta_info": {"idx": 1.0}}, "meta_info.idx is 1.0; expected the datapoint's whole number"),
        ({"inputs": X, "meta_info": {"idx": True}}, "meta_info.idx is True; expected the datapoint's whole number"),
        (
            {"inputs": X, "meta_info": {"idx": X}},
            "meta_info.idx is a Tensor of shape (3,); expected the datapoint's whole number",
        ),
    ],
)
def test_an_item_that_cannot_be_understood(item: Any, expected: str) -> None:
    assert refusal(item) == expected


def test_the_item_itself_is_not_changed() -> None:
    item = {"inputs": X, "labels": 1, "meta_info": {"path": "a"}}
    datapoint(item, 5)
    assert item == {"inputs": X, "labels": 1, "meta_info": {"path": "a"}}


# ---- datasets with positions
class Photos(Dataset[Any]):
    classes = ("cat", "dog")

    def __init__(self) -> None:
        self.transform = "none"
        self.several: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return torch.full((2,), float(i)), i % 2


class ManyPhotos(Photos):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        self.several.append(list(positions))
        return [self[i] for i in positions]


def test_a_dataset_is_numbered_by_position() -> None:
    data = Datapoints(Photos())
    assert len(data) == 10
    assert data[3]["inputs"].tolist() == [3.0, 3.0]
    assert (data[3]["labels"], data[3]["meta_info"]) == (1, {"idx": 3})
    assert data[np.int64(3)]["meta_info"] == {"idx": 3}  # type: ignore[call-overload]
    assert [one["meta_info"]["idx"] for one in data.__getitems__([4, 2])] == [4, 2]


def test_a_dataset_that_reads_several_items_at_once_is_called_once() -> None:
    photos = ManyPhotos()
    assert [one["labels"] for one in Datapoints(photos).__getitems__([4, 3])] == [0, 1]
    assert photos.several == [[4, 3]]


def test_everything_else_of_the_dataset_is_still_there() -> None:
    data = Datapoints(Photos())
    assert data.classes == ("cat", "dog")
    assert data.transform == "none"
    assert not hasattr(data, "absent")
    with pytest.raises(AttributeError, match="absent"):
        data.absent  # noqa: B018


@pytest.mark.parametrize("kind", [Datapoints, IterableDatapoints])
def test_it_can_be_pickled_for_a_worker(kind: Any) -> None:
    back = pickle.loads(pickle.dumps(kind(Photos())))
    assert back.classes == ("cat", "dog")


@pytest.mark.parametrize("dataset", [Subset(Photos(), [5, 6]), ConcatDataset([Photos()]), [(X, 1)], TensorDataset(X)])
def test_ready_datasets_serve(dataset: Any) -> None:
    assert adapt(dataset)[0]["meta_info"] == {"idx": 0}


# ---- datasets without positions
class Stream(IterableDataset[Any]):
    classes = ("cat", "dog")

    def __iter__(self) -> Iterator[Any]:
        yield from ((torch.tensor(float(i)), i) for i in range(4))


class PlainStream:
    def __iter__(self) -> Iterator[Any]:
        return iter([X, X])


@pytest.mark.parametrize("dataset", [Stream(), PlainStream()])
def test_a_stream_is_numbered_in_order_from_0_in_every_epoch(dataset: Any) -> None:
    data = adapt(dataset)
    assert isinstance(data, IterableDatapoints)
    for _ in range(2):
        found = [one["meta_info"]["idx"] for one in data]
        assert found == list(range(len(found)))


def test_a_stream_has_no_length_and_its_other_attributes() -> None:
    assert not hasattr(adapt(Stream()), "__len__")
    assert adapt(Stream()).classes == ("cat", "dog")


def test_a_datapoint_without_a_number() -> None:
    assert refusal((X, 1), None) == (
        "several workers or ranks cannot number the items of an iterable dataset: each would begin at 0\n"
        "give every item its own meta_info.idx, or use num_workers 0 or 1 and one process"
    )


# ---- adapting
def test_adapting_twice_is_adapting_once() -> None:
    data = adapt(Photos())
    assert adapt(data) is data
    assert adapt(data, make=NumberedItem)[3].idx == 3
    assert adapt(adapt(data, make=NumberedItem))[3]["meta_info"]["idx"] == 3


def test_a_generator_is_refused_because_it_ends_after_one_epoch() -> None:
    with pytest.raises(
        ConfigError, match="the dataset is a generator, which can be read only once; expected a Dataset"
    ):
        adapt(x for x in [X])


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match="the dataset is 3; expected a Dataset with __getitem__ and __len__"):
        adapt(3)


def test_positions_without_a_length_are_refused() -> None:
    class Endless:
        def __getitem__(self, i: int) -> Any:
            return X

    with pytest.raises(ConfigError, match="the dataset, an Endless, has no __len__; add one, or make it an Iterable"):
        adapt(Endless())


# ---- class names
class Named(Photos):
    class_names: Any = ("a", "b")


class Strange(Photos):
    classes: Any = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [(Photos(), ("cat", "dog")), (Named(), ("a", "b")), (Strange(), None), ([X], None), (adapt(Named()), ("a", "b"))],
)
def test_class_names_of_a_dataset(dataset: Any, expected: Any) -> None:
    assert class_names(dataset) == expected
    part = torch.utils.data.Subset(torch.utils.data.Subset(dataset, [0]), [0])  # what random_split gives
    assert class_names(adapt(part)) == expected


def test_class_names_of_joined_datasets() -> None:
    join = torch.utils.data.ConcatDataset
    assert class_names(join([Named(), torch.utils.data.Subset(Named(), [0])])) == ("a", "b")
    assert class_names(adapt(join([join([Photos(), Photos()]), Photos()]))) == ("cat", "dog")
    assert class_names(join([Named(), Photos()])) is None
    assert class_names(join([Named(), Strange()])) is None
