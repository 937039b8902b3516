from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from endoscope.errors import ConfigError, DatapointError
from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runs.scores import Direction, Scores


class Distance(BaseMetric):
    """A score, what it takes for the largest label, and a total on the device."""

    DIRECTIONS: Mapping[str, Direction] = {"distance": "lower"}
    AGGREGATED: Mapping[str, Direction] = {"largest": "higher", "calls": "lower"}
    EVIDENCE = ("label",)

    def __init__(self) -> None:
        self.calls = torch.zeros(())

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        self.calls += 1
        labels = datapoint["labels"]
        return {"distance": (datapoint["outputs"] - labels).abs(), "label": labels[:, None].expand(-1, 2)}

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        largest = float(evidence["label"].max()) if len(evidence["label"]) else math.nan
        return {**super().aggregate(scores, evidence, sums), "largest": largest, "calls": float(sums["calls"])}

    def sums(self) -> dict[str, Tensor]:
        return {"calls": self.calls}

    def reset_buffer(self) -> None:
        super().reset_buffer()
        self.calls = torch.zeros(())


class Plain(BaseMetric):
    DIRECTIONS: Mapping[str, Direction] = {"score": "higher"}

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"score": datapoint["outputs"]}


def run(metric: BaseMetric, idx: list[int], *, batch: int = 4) -> BaseMetric:
    """The metric after these datapoints, whose outputs and labels follow from the index."""
    for start in range(0, len(idx), batch):
        part = torch.tensor(idx[start : start + batch])
        datapoint = {"outputs": part * 1.5, "labels": part.float(), "meta_info": {"idx": part}}
        metric.add_to_buffer(metric(datapoint), datapoint["meta_info"]["idx"])
    return metric


def record(*batches: tuple[list[int], list[float]]) -> Plain:
    metric = Plain()
    for idx, scores in batches:
        metric.add_to_buffer({"score": torch.tensor(scores)}, idx)
    return metric


def same(a: Scores, b: Scores) -> bool:
    return repr(a) == repr(b)  # NaN is not equal to itself


def test_scores_are_by_index_in_order_with_their_mean() -> None:
    scores = run(Distance(), [7, 3, 5], batch=2).summarize()
    assert scores.per_datapoint == {3: {"distance": 1.5}, 5: {"distance": 2.5}, 7: {"distance": 3.5}}
    assert list(scores.per_datapoint) == [3, 5, 7]
    assert scores.aggregated == {"distance": 2.5, "largest": 7.0, "calls": 2.0}
    assert scores.directions == {"distance": "lower", "largest": "higher", "calls": "lower"}
    assert scores.non_finite == {"distance": 0}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 10**6), unique=True, max_size=30),
    st.integers(1, 3),
    st.integers(1, 7),
    st.booleans(),
)
def test_what_the_ranks_gathered_equals_one_run(idx: list[int], ranks: int, batch: int, padded: bool) -> None:
    padding = idx[: -len(idx) % ranks] if padded else []
    shares = [(idx + padding)[rank::ranks] for rank in range(ranks)]
    metrics = [run(Distance(), share, batch=batch) for share in shares]
    partials = pickle.loads(pickle.dumps([metric.partial() for metric in metrics]))
    merged = Distance().merged(partials)
    alone = run(Distance(), idx, batch=batch).summarize()
    assert merged.per_datapoint == alone.per_datapoint
    assert sorted(merged.per_datapoint) == sorted(idx)
    for name in ("distance", "largest"):
        assert merged.aggregated[name] == pytest.approx(alone.aggregated[name], nan_ok=True, rel=1e-12)
    assert merged.aggregated["calls"] == sum(float(metric.calls) for metric in metrics)


def test_a_datapoint_that_came_twice_counts_as_it_came_first() -> None:
    assert record(([1, 2], [1.0, 2.0]), ([1], [9.0])).summarize().per_datapoint[1] == {"score": 1.0}
    ranks = [record(([1, 2], [1.0, 2.0])), record(([2, 3], [8.0, 3.0]))]
    scores = Plain().merged([metric.partial() for metric in ranks])
    assert scores.per_datapoint == {1: {"score": 1.0}, 2: {"score": 2.0}, 3: {"score": 3.0}}
    assert scores.aggregated == {"score": 2.0}


def test_nan_is_kept_counted_and_not_averaged_away() -> None:
    scores = record(([0, 1, 2], [1.0, math.nan, math.inf])).summarize()
    assert math.isnan(scores.aggregated["score"])
    assert math.isnan(scores.per_datapoint[1]["score"])
    assert scores.per_datapoint[2]["score"] == math.inf
    assert scores.non_finite == {"score": 2}


def test_without_datapoints_the_mean_is_nan() -> None:
    scores = Plain().summarize()
    assert math.isnan(scores.aggregated["score"])
    assert (scores.per_datapoint, scores.non_finite) == ({}, {"score": 0})
    assert same(scores, Plain().merged([]))


def test_summarize_may_be_called_again_and_reset_forgets() -> None:
    metric = run(Distance(), [1, 2])
    assert metric.summarize() == metric.summarize()
    metric.reset_buffer()
    run(metric, [9])
    assert list(metric.summarize().per_datapoint) == [9]
    assert metric.summarize().aggregated["calls"] == 1


@pytest.mark.parametrize(
    "idx", [[4, 5], (4, 5), torch.tensor([4, 5]), torch.tensor([4, 5], dtype=torch.int32), [torch.tensor(4), 5]]
)
def test_indices_come_in_many_forms(idx: Any) -> None:
    metric = Plain()
    metric.add_to_buffer({"score": torch.tensor([1.0, 2.0])}, idx)
    assert metric.summarize().per_datapoint == {4: {"score": 1.0}, 5: {"score": 2.0}}


@pytest.mark.parametrize("idx", [3, torch.tensor(3)])
def test_one_index_is_a_batch_of_one(idx: Any) -> None:
    metric = Plain()
    metric.add_to_buffer({"score": torch.tensor([1.0])}, idx)
    assert metric.summarize().per_datapoint == {3: {"score": 1.0}}


def test_scores_changed_after_they_were_added_were_copied() -> None:
    metric, score, idx = Plain(), torch.ones(1, requires_grad=True) * 2, torch.tensor([1])
    metric.add_to_buffer({"score": score}, idx)
    idx.zero_()
    with torch.no_grad():
        score.zero_()
    assert metric.summarize().per_datapoint == {1: {"score": 2.0}}


def test_scores_of_any_dtype_are_floats() -> None:
    for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.float64):
        metric = Plain()
        metric.add_to_buffer({"score": torch.ones(1, dtype=dtype)}, [0])
        value = metric.summarize().per_datapoint[0]["score"]
        assert (type(value), value) == (float, 1.0)


def test_a_copy_of_a_metric_starts_empty() -> None:
    metric = record(([1], [1.0]))
    other = copy.deepcopy(metric)
    assert (len(metric.summarize().per_datapoint), len(other.summarize().per_datapoint)) == (1, 0)


# ---------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"score": torch.zeros(3)}, r"Plain: 'score' is a Tensor of shape \(3,\); expected a tensor of shape \(2,\)"),
        (
            {"score": torch.zeros(2, 1)},
            r"a Tensor of shape \(2, 1\); expected a tensor of shape \(2,\)",
        ),
        ({"score": torch.tensor(1.0)}, r"Plain: 'score' is a Tensor of shape \(\)"),
        ({"score": [1.0, 2.0]}, r"Plain: 'score' is a list; expected a tensor of shape \(2,\), one for each of the 2"),
        (
            {"score": torch.zeros(2), "f1": torch.zeros(2)},
            "Plain returned 'f1', which has no direction; name it in",
        ),
        ({}, "Plain did not return 'score', which its DIRECTIONS or EVIDENCE names"),
    ],
)
def test_wrong_scores_are_refused_at_the_first_call(scores: Any, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Plain().add_to_buffer(scores, [0, 1])


def test_evidence_needs_one_row_for_each_datapoint() -> None:
    with pytest.raises(MetricError, match=r"'label' is a Tensor of shape \(1, 5\); expected .* \(2, ...\)"):
        Distance().add_to_buffer({"distance": torch.zeros(2), "label": torch.zeros(1, 5)}, [0, 1])


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (torch.tensor([0.5, 1.0]), "idx holds torch.float32; expected the integer index of each datapoint"),
        ([True, False], "idx holds torch.bool"),
        (["a", "b"], r"idx is a list; expected the integer index"),
        (None, "idx is None; expected the integer index"),
    ],
)
def test_indices_that_are_none_are_refused_at_once(idx: Any, message: str) -> None:
    with pytest.raises(DatapointError, match=message):
        Plain().add_to_buffer({"score": torch.zeros(2)}, idx)


def test_a_direction_that_is_none_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(ConfigError, match=r"Typo.DIRECTIONS\['score'\] is 'up'; expected 'higher' or 'lower'"):

        class Typo(Plain):
            DIRECTIONS: Mapping[str, Any] = {"score": "up"}


def test_an_aggregated_number_without_a_direction_is_refused() -> None:
    class Forgetful(Plain):
        def aggregate(self, *_: Any) -> dict[str, float]:
            return {"f1": 1.0}

    with pytest.raises(MetricError, match=r"Forgetful.aggregate returned 'f1', which has no direction; .*AGGREGATED"):
        Forgetful().summarize()
