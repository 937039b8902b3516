"""A datapoint's sections as flat items, and what a classification says."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.runs import datapoint_values as values
from endoscope.runs.datapoint_values import (
    Item,
    is_classification,
    is_of,
    label_of,
    prediction_of,
    scores_of_classes,
    tokens_of,
    walk,
)
from endoscope.values import DataclassValue, NamedTupleValue


def names(value: Any) -> list[str]:
    return [found.name for found in walk("debugger", value, "seen")]


# ---------------------------------------------------------------- walking
def test_tensors_are_items_and_scalars_beside_them_one_table() -> None:
    seen = {
        "feature_map": torch.zeros(1, 3, 4, 4),
        "stats": {"mean": 0.5, "shape": [1, 3, 4, 4]},
        "layer_name": "conv",
        "calls": 1,
        "channel_means": [0.1] * 16,
    }
    found = {one.name: one for one in walk("debugger", seen, "seen")}
    assert [*found] == ["feature_map", "stats", "channel_means", "values"]
    assert found["values"].value == {"layer_name": "conv", "calls": 1}
    assert found["stats"].value is seen["stats"]


def test_a_value_that_is_no_container_is_called_as_its_section_or_debugger() -> None:
    assert [one.name for one in walk("inputs", torch.zeros(3))] == ["inputs"]
    assert names(0.5) == ["seen"]


def test_ids_are_those_of_the_place_and_not_of_the_value() -> None:
    def ids(section: str, value: Any, debugger: str | None = None) -> list[str]:
        return [one.id for one in walk(section, value, debugger)]

    first = {"a": torch.zeros(3), "b": {"c": torch.ones(2)}}
    later = {"b": {"c": torch.zeros(9)}, "a": torch.zeros(1, 5)}
    assert sorted(ids("debugger", first, "x")) == sorted(ids("debugger", later, "x"))
    others = [ids("debugger", first, "y"), ids("outputs", first), ids("debugger", {"a/b": {"c": torch.ones(2)}}, "x")]
    assert not {*ids("debugger", first, "x")} & {one for other in others for one in other}
    assert all(one.isalnum() for one in ids("debugger", {"<script>/../é": torch.zeros(3)}, "x"))


def test_keys_that_read_alike_have_ids_of_their_own() -> None:
    found = [*walk("debugger", {"a/b": torch.zeros(3), "a": {"b": torch.zeros(3)}}, "x")]
    assert [one.name for one in found] == ["a/b", "a/b"]
    assert len({one.id for one in found}) == 2


def test_an_id_tells_the_debugger_before_it_is_read() -> None:
    item = [*walk("debugger", {"a": torch.zeros(3), "b": {"c": torch.ones(2)}}, "x")][1]
    assert is_of(item.id, "debugger", "x")
    assert not is_of(item.id, "debugger", "y")
    assert not is_of(item.id, "outputs", "x")


LOOKED_UP: list[Any] = [
    {"a": [torch.zeros(2), {"b c": torch.ones(1, 2)}]},
    {3: torch.zeros(2), "it's": {"x\n": torch.ones(2)}},
    DataclassValue("user.Box", {"t": torch.zeros(2), "inner": (torch.ones(2), 1)}),
    NamedTupleValue("user.Pair", ["t", "u"], [torch.zeros(2), torch.ones(2)]),
    {"only": 5},
]


@pytest.mark.parametrize("seen", LOOKED_UP)
def test_the_lookup_of_an_item_finds_its_value(seen: Any) -> None:
    for found in walk("debugger", seen, "x"):
        assert eval(f"seen{found.lookup}", {"seen": seen}) is found.value


def statements(found: list[Item]) -> list[str]:
    return [one.value for one in found if one.is_note]


def test_many_members_are_cut_with_a_statement() -> None:
    found = [*walk("debugger", {f"t{k}": torch.zeros(2) for k in range(100_000)}, "x")]
    assert len(found) == values.MOST_ITEMS + 1
    assert statements(found) == ["Only the first 200 items are shown. The snippet loads all."]
    few = [*walk("debugger", {f"t{k}": torch.zeros(2) for k in range(200)}, "x")]
    assert len(few) == 200
    assert statements(few) == []


def test_many_scalars_are_one_item_with_all_of_them() -> None:
    seen = {f"k{k}": k for k in range(100_000)}
    (found,) = walk("debugger", seen, "x")
    assert found.value is seen


def test_many_scalars_beside_a_tensor_say_how_many_were_looked_at() -> None:
    seen: dict[str, Any] = {"t": torch.zeros(2), **{f"k{k}": k for k in range(100_000)}}
    found = [*walk("debugger", seen, "x")]
    assert statements(found) == ["Only the first 20,000 members were looked at; this container has 100,001."]


@pytest.mark.parametrize("make", [lambda inner: {"k": inner}, lambda inner: [inner]])
def test_deep_nesting_ends_with_a_statement(make: Any) -> None:
    seen: Any = torch.zeros(3)
    for _ in range(60):
        seen = make(seen)
    found = [*walk("debugger", seen, "x")]
    assert statements(found) == ["Deeper than 24 levels. The snippet loads all of it."]
    shallow: Any = torch.zeros(3)
    for _ in range(20):
        shallow = make(shallow)
    assert statements([*walk("debugger", shallow, "x")]) == []


def test_wide_and_deep_at_once_is_bounded() -> None:
    seen: Any = [torch.zeros(1)] * 10
    for _ in range(8):
        seen = [seen] * 10  # 10^9 tensors
    began = time.process_time()
    found = [*walk("debugger", seen, "x")]
    assert len(found) == values.MOST_ITEMS + 1
    assert time.process_time() - began < 5


def test_long_keys_are_shortened_on_screen_and_told_apart() -> None:
    seen = {"k" * 1_000_000 + end: torch.zeros(2) for end in "ab"}
    found = [*walk("debugger", seen, "x")]
    assert all(len(one.name) < 300 and "1,000,001 characters" in one.name for one in found)
    assert len({one.id for one in found}) == 2
    assert found[0].lookup == ""


# ---------------------------------------------------------------- labels and predictions
@pytest.mark.parametrize(
    ("labels", "label"),
    [
        (3, 3),
        (torch.tensor([0]), 0),
        (torch.tensor(2, dtype=torch.uint8), 2),
        (np.int64(4), 4),
        ({"label": torch.tensor([0]), "area": 7}, 0),
        ({"anything": torch.tensor([5])}, 5),
        ({"x": 1, "y_size": 2}, None),
        (torch.tensor([0, 1, 0]), None),
        (torch.tensor([1.0]), None),
        (True, None),
        (torch.tensor([True]), None),
        ("cat", None),
        (None, None),
        ([1], None),
    ],
)
def test_the_label_of_one_class(labels: Any, label: int | None) -> None:
    assert label_of(labels) == label


ROW = torch.tensor([[0.5, 2.0, -1.0]])


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (ROW, True),
        (ROW[0], True),
        ({"logits": ROW, "embedding": torch.zeros(1, 64)}, True),
        (DataclassValue("transformers.Output", {"loss": None, "logits": ROW}), True),
        ({"anything": ROW}, True),
        ({"a": torch.zeros(1, 3), "b": torch.zeros(1, 3)}, False),
        (torch.zeros(1, 3, 8, 8), False),
        (torch.zeros(1, 1), False),
        (torch.zeros(1, 3, dtype=torch.int64), False),
        (None, False),
    ],
)
def test_outputs_that_may_be_those_of_classes(outputs: Any, found: bool) -> None:
    row = scores_of_classes(outputs)
    assert (row is not None) is found
    if found:
        assert row.flatten().tolist() == [0.5, 2.0, -1.0]


@pytest.mark.parametrize(
    ("labels", "class_names", "expected"),
    [
        (torch.tensor([1]), ("a", "b", "c"), True),
        (None, ("a", "b", "c"), True),
        (torch.tensor([1]), None, True),
        (torch.tensor([1]), ("a", "b"), False),
        (torch.tensor([7]), None, False),
        (torch.tensor([[0.1, 0.2, 0.3]]), None, False),  # a regression
        (torch.tensor([[0, 1, 1]]), ("a", "b", "c"), False),  # several classes at once
        (None, None, False),
    ],
)
def test_what_counts_as_a_classification(labels: Any, class_names: Any, expected: bool) -> None:
    assert is_classification(ROW, labels, class_names) is expected


def test_the_prediction_is_the_softmax_of_logits_and_not_of_probabilities() -> None:
    found = prediction_of(ROW)
    assert found is not None
    assert (found.index, found.how) == (1, "softmax of the outputs")
    assert found.probability == pytest.approx(torch.softmax(ROW.double(), 1)[0, 1].item())
    again = prediction_of(torch.softmax(ROW, 1))
    assert again is not None
    assert again.probability == pytest.approx(found.probability, abs=1e-6)
    assert "themselves" in again.how
    logs = prediction_of(torch.log_softmax(ROW, 1))
    assert logs is not None and logs.probability == pytest.approx(found.probability, abs=1e-6)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_predict_nothing(odd: float) -> None:
    assert prediction_of(torch.tensor([[0.0, odd]])) is None


def test_large_logits_do_not_overflow() -> None:
    found = prediction_of(torch.tensor([[1e30, -1e30]]))
    assert found is not None and (found.index, found.probability) == (0, 1.0)


def test_tokens_are_texts_in_a_list() -> None:
    assert tokens_of({"x": 1}, {"tokens": ["a", "b"]}) == ("a", "b")
    assert tokens_of({"tokens": [["a", "b"]]}) == ("a", "b")
    assert tokens_of({"tokens": torch.zeros(3)}, {"tokens": [1, 2]}, None, "tokens") is None
