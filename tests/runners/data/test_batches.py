from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.errors import DatapointError
from endoscope.runners.data.batches import UserCollate, collate, to_device
from endoscope.runners.data.datapoints import NumberedItem, datapoint

REMEDY = "give them equal shapes in the dataset, or set a 'collate_fn' in the dataloader node that joins them"


def batch(*items: Any) -> dict[str, Any]:
    return collate([datapoint(item, i) for i, item in enumerate(items)])


def refusal(*items: Any) -> str:
    with pytest.raises(DatapointError) as caught:
        batch(*items)
    return str(caught.value)


# ---- joining
def test_inputs_and_labels_are_joined_as_torch_does_it() -> None:
    found = batch((torch.zeros(2), 1), (torch.ones(2), 0))
    assert torch.equal(found["inputs"], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert torch.equal(found["labels"], torch.tensor([1, 0]))
    assert torch.equal(found["meta_info"]["idx"], torch.tensor([0, 1]))
    assert found["meta_info"]["idx"].dtype == torch.int64


def test_nested_inputs_and_labels() -> None:
    item = {"inputs": {"a": torch.zeros(2), "b": [torch.zeros(1), 3.0]}, "labels": {"box": np.zeros(4)}}
    found = batch(item, item, item)
    assert found["inputs"]["a"].shape == (3, 2)
    assert found["inputs"]["b"][0].shape == (3, 1)
    assert found["labels"]["box"].shape == (3, 4)


def test_no_labels_stay_none() -> None:
    assert batch(torch.zeros(2), torch.zeros(2))["labels"] is None


def meta(*values: Any) -> Any:
    return batch(*({"inputs": torch.zeros(1), "meta_info": {"field": value}} for value in values))["meta_info"]["field"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1, 2), torch.int64),
        ((0.5, 2.0), torch.float64),
        ((True, False), torch.bool),
        ((np.float32(1), np.float32(2)), torch.float32),
        ((torch.zeros(2), torch.ones(2)), torch.float32),
        ((np.zeros(2), np.zeros(2)), torch.float64),
    ],
)
def test_fields_that_go_together_become_a_tensor(values: Any, dtype: torch.dtype) -> None:
    found = meta(*values)
    assert found.dtype == dtype
    assert len(found) == 2


@pytest.mark.parametrize(
    "values",
    [
        ("a", "b"),
        (None, None),
        (None, "b"),
        (1, 2.0),
        (1, None),
        (1, 2**70),
        ((1, 2), (3, 4)),
        ([1], [2]),
        ({"a": 1}, {"a": 2}),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64)),
        (np.array(["a"]), np.array(["b"])),
        (b"a", b"b"),
    ],
)
def test_fields_that_do_not_stay_a_list_with_one_entry_a_datapoint(values: Any) -> None:
    found = meta(*values)
    assert type(found) is list
    assert all(one is value for one, value in zip(found, values, strict=True))


def test_a_field_that_some_lack_has_none_there() -> None:
    found = batch({"x": torch.zeros(1), "path": "a"}, {"x": torch.zeros(1), "size": 3})["meta_info"]
    assert (found["path"], found["size"]) == (["a", None], [None, 3])


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [(torch.zeros(3, 4), 1), (torch.zeros(3, 4), 1), (torch.zeros(3, 5), 1)],
            "inputs: shape (3, 4) for datapoint 0 and shape (3, 5) for datapoint 2 do not make a batch",
        ),
        (
            [({"a": [torch.zeros(1)]}, 1), ({"a": [torch.zeros(2)]}, 1)],
            "inputs.a[0]: shape (1,) for datapoint 0 and shape (2,) for datapoint 1 do not make a batch",
        ),
        (
            [(torch.zeros(1), np.zeros(2)), (torch.zeros(1), np.zeros(3))],
            "labels: shape (2,) for datapoint 0 and shape (3,) for datapoint 1 do not make a batch",
        ),
        (
            [(torch.zeros(1), 1), (torch.zeros(1), None)],
            "labels: an int for datapoint 0 and None for datapoint 1 do not make a batch",
        ),
        (
            [({"a": torch.zeros(1)}, 1), ({"b": torch.zeros(1)}, 1)],
            "inputs: keys ['a'] for datapoint 0 and keys ['b'] for datapoint 1 do not make a batch",
        ),
        (
            [([1, 2], 1), ([1], 1)],
            "inputs: length 2 for datapoint 0 and length 1 for datapoint 1 do not make a batch",
        ),
        (
            [(slice(1), 1), (slice(2), 1)],
            "inputs of the datapoints do not make a batch: default_collate: batch must contain tensors, numpy arrays, "
            "numbers, dicts or lists; found <class 'slice'>",
        ),
    ],
)
def test_what_does_not_make_a_batch_names_the_two(items: Sequence[Any], expected: str) -> None:
    assert refusal(*items) == f"{expected}\n{REMEDY}"


# ---- a user's own collate_fn
def numbered(*items: Any) -> list[NumberedItem]:
    return [NumberedItem(item, 10 + i) for i, item in enumerate(items)]


def pair(items: list[Any]) -> Any:
    return torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])


X = torch.zeros(2)


def test_it_gets_the_datasets_own_items_and_a_pair_gets_its_indices() -> None:
    found = UserCollate(pair)(numbered((X, 1), (X, 2)))
    assert found["inputs"].shape == (2, 2)
    assert found["labels"].tolist() == [1, 2]
    assert found["meta_info"]["idx"].tolist() == [10, 11]


def test_items_may_be_anything_that_it_understands() -> None:
    found = UserCollate(lambda items: torch.tensor([len(item) for item in items]))(numbered("one", "three"))
    assert found["inputs"].tolist() == [3, 5]
    assert found["meta_info"]["idx"].tolist() == [10, 11]


def test_a_dict_in_our_shape_is_taken_as_it_is() -> None:
    def ours(items: list[Any]) -> Any:
        return {"inputs": torch.zeros(1), "labels": None, "meta_info": {"idx": [7], "path": ["a"]}}

    found = UserCollate(ours)(numbered((X, 1), (X, 2)))
    assert found["meta_info"]["idx"].tolist() == [7]
    assert found["meta_info"]["path"] == ["a"]


def test_a_batch_as_tokenizers_give_it() -> None:
    ids = torch.ones(2, 3, dtype=torch.int64)
    encoded = UserDict({"input_ids": ids, "attention_mask": ids, "labels": torch.tensor([0, 1])})
    found = UserCollate(lambda items: encoded)(numbered("a", "b"))
    assert list(found["inputs"]) == ["input_ids", "attention_mask"]
    assert found["labels"].tolist() == [0, 1]


@pytest.mark.parametrize("item", [{"x": X, "meta_info": {"idx": 3}}, {"x": X, "idx": 3}, (X, 1, {"idx": 3})])
def test_the_items_own_indices_are_respected(item: Any) -> None:
    assert UserCollate(lambda items: X[:1])(numbered(item))["meta_info"]["idx"].tolist() == [3]


def test_a_batch_that_lost_items_is_refused_unless_it_says_which_are_left() -> None:
    def drops(items: list[Any]) -> Any:
        return pair(items[1:])

    with pytest.raises(DatapointError) as caught:
        UserCollate(drops)(numbered((X, 1), (X, 2), (X, 3)))
    assert str(caught.value) == (
        "collate_fn got 3 items and returned tensors of length 2: which is which?\n"
        "return a dict with 'inputs', 'labels' and 'meta_info': {'idx': [...]}"
    )
    told = UserCollate(lambda items: (*drops(items), {"idx": [11, 12]}))
    assert told(numbered((X, 1), (X, 2), (X, 3)))["meta_info"]["idx"].tolist() == [11, 12]


def detection(items: list[Any]) -> Any:
    return [x for x, _ in items], [y for _, y in items]


def nodes(count: int) -> torch.Tensor:
    return torch.zeros(count, 4)


@pytest.mark.parametrize("several", [list, tuple])
@pytest.mark.parametrize("labels", [{"boxes": torch.zeros(5, 4)}, torch.zeros(5, 4), 1, None])
def test_a_list_with_one_entry_an_item_may_hold_tensors_of_any_size(several: Any, labels: Any) -> None:
    items = [(torch.zeros(3, 8, 8 + i), labels) for i in range(4)]
    found = UserCollate(lambda given: tuple(map(several, detection(given))))(numbered(*items))
    assert [x is y for x, (y, _) in zip(found["inputs"], items, strict=True)] == [True] * 4
    assert (type(found["inputs"]), len(found["labels"])) == (several, 4)
    assert found["meta_info"]["idx"].tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize("batch", [(nodes(9), [0, 1]), ([nodes(5), nodes(4)], nodes(9)), (nodes(9), (nodes(5), None))])
def test_one_of_inputs_and_labels_with_an_entry_an_item_is_enough(batch: Any) -> None:
    assert UserCollate(lambda items: batch)(numbered(X, X))["meta_info"]["idx"].tolist() == [10, 11]


@pytest.mark.parametrize(
    ("batch", "returned"),
    [
        (nodes(3), "tensors of length 3"),
        ((nodes(3), nodes(5)), "tensors of length 3"),
        ((nodes(3), [0, 1, 2]), "tensors of length 3"),
        ({"inputs": {"a": nodes(3), "b": nodes(4)}, "labels": None}, "tensors of length 3"),
        ({"inputs": {"a": [nodes(3)] * 4}, "labels": None}, "tensors of length 3"),
        ((namedtuple("Four", "a b c d")(*[nodes(3)] * 4), None), "tensors of length 3"),
        (([nodes(5)] * 3, [nodes(6)] * 3), "tensors of length 5"),
        (((nodes(5),) * 2, None), "tensors of length 5"),
    ],
)
def test_what_has_neither_a_row_nor_an_entry_an_item_is_refused(batch: Any, returned: str) -> None:
    with pytest.raises(DatapointError) as caught:
        UserCollate(lambda items: batch)(numbered(X, X, X, X))
    assert str(caught.value) == (
        f"collate_fn got 4 items and returned {returned}: which is which?\n"
        "return a dict with 'inputs', 'labels' and 'meta_info': {'idx': [...]}"
    )


def test_an_index_that_is_no_list_is_refused() -> None:
    with pytest.raises(DatapointError, match="collate_fn gave meta_info.idx as an int; expected one per item"):
        UserCollate(lambda items: (X, X, {"idx": 3}))(numbered(X))


def test_items_without_a_number_are_refused() -> None:
    with pytest.raises(DatapointError, match="several workers or ranks cannot number the items of an iterable dataset"):
        UserCollate(lambda items: X[:1])([NumberedItem(X, None)])


# ---- moving
Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Graph:
    nodes: torch.Tensor
    name: str
    size: int = dataclasses.field(default=3, init=False)


class Movable:
    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def to(self, device: str) -> Movable:
        return Movable(device)


def test_inputs_and_labels_are_moved_however_nested_and_keep_their_types() -> None:
    values = {"inputs": {"a": [X, (X, "text")], "n": None}, "labels": Pair(X, 3), "meta_info": {"idx": X}}
    moved = to_device(values, "meta")
    assert moved["inputs"]["a"][0].is_meta
    assert moved["inputs"]["a"][1][0].is_meta
    assert moved["inputs"]["a"][1][1] == "text"
    assert moved["inputs"]["n"] is None
    assert type(moved["labels"]) is Pair
    assert moved["labels"].a.is_meta
    assert not values["labels"].a.is_meta  # type: ignore[attr-defined]


def test_meta_info_stays_on_the_host() -> None:
    info = {"idx": torch.tensor([1]), "path": ["a"]}
    assert to_device({"inputs": X, "labels": None, "meta_info": info}, "meta")["meta_info"] is info


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_mappings_keep_their_type(kind: Any) -> None:
    given = kind({"a": X})
    moved = to_device({"inputs": given}, "meta")["inputs"]
    assert type(moved) is kind
    assert moved["a"].is_meta
    assert not given["a"].is_meta


def test_dataclasses_and_what_can_move_itself() -> None:
    given = Graph(X, "g")
    moved = to_device({"inputs": [given, Movable()]}, "meta")["inputs"]
    assert type(moved[0]) is Graph
    assert moved[0].nodes.is_meta
    assert (moved[0].name, moved[0].size) == ("g", 3)
    assert not given.nodes.is_meta
    assert moved[1].device == "meta"


def test_what_is_there_already_is_not_copied() -> None:
    assert to_device({"inputs": X}, "cpu")["inputs"] is X
