"""What every ready-made metric keeps to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.contracts.shipped import check_cases, run_docstring, shipped
from torch import Tensor

from endoscope.runners.metric import BaseMetric
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.metrics.regression import RegressionMetric
from endoscope.runners.metrics.segmentation import SegmentationMetric
from endoscope.runners.metrics.torchmetrics import TorchMetricsMetric
from endoscope.runs.scores import Scores

G = torch.Generator().manual_seed(0)


def of_torchmetrics() -> BaseMetric:
    torchmetrics = pytest.importorskip("torchmetrics")
    return TorchMetricsMetric({"mse": torchmetrics.MeanSquaredError()}, directions={"mse": "lower"})


@dataclass(frozen=True)
class Case:
    """How to make a metric, and datapoints for it."""

    build: Callable[[], BaseMetric]
    outputs: Tensor
    labels: Tensor
    runs_docstring: bool = True


CASES = {
    "ClassificationMetric": Case(
        ClassificationMetric, torch.randn(12, 4, generator=G), torch.randint(4, (12,), generator=G)
    ),
    "RegressionMetric": Case(RegressionMetric, torch.randn(12, 3, generator=G), torch.randn(12, 3, generator=G)),
    "SegmentationMetric": Case(
        lambda: SegmentationMetric(3),
        torch.randn(12, 3, 5, 5, generator=G),
        torch.randint(3, (12, 5, 5), generator=G),
    ),
    "TorchMetricsMetric": Case(
        of_torchmetrics, torch.randn(12, 3, generator=G), torch.randn(12, 3, generator=G), runs_docstring=False
    ),
}

METRICS = shipped(BaseMetric, "endoscope.runners.metrics")
each = pytest.mark.parametrize("name", [cls.__name__ for cls in METRICS])


def score(case: Case, batches: list[list[int]], *, ranks: int = 1, outputs: Tensor | None = None) -> Scores:
    """The scores of the datapoints in ``batches``, which take turns on the ranks."""
    metrics = [case.build() for _ in range(ranks)]
    for k, indices in enumerate(batches):
        of = case.outputs if outputs is None else outputs
        datapoint = {"outputs": of[indices], "labels": case.labels[indices], "meta_info": {"idx": indices}}
        metrics[k % ranks].add_to_buffer(metrics[k % ranks](datapoint), torch.tensor(indices))
    return metrics[0].merged([metric.partial() for metric in metrics])


def text(scores: Scores) -> str:
    return repr((scores.per_datapoint, scores.aggregated, scores.non_finite, dict(scores.directions)))  # NaN as text


BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_every_metric_has_a_case() -> None:
    check_cases(METRICS, CASES, "CASES in tests/contracts/test_metrics.py")


@pytest.mark.parametrize("cls", METRICS)
def test_the_docstring_has_an_example_that_runs(cls: type) -> None:
    if CASES[cls.__name__].runs_docstring:
        run_docstring(cls)
    else:
        assert cls.__doc__
        assert ">>> " in cls.__doc__


@each
def test_every_score_has_a_direction(name: str) -> None:
    metric = CASES[name].build()
    directions: dict[str, Any] = {**metric.DIRECTIONS, **metric.AGGREGATED}
    assert metric.DIRECTIONS
    assert set(directions.values()) <= {"higher", "lower"}
    scores = score(CASES[name], BATCHES)
    assert set(scores.aggregated) <= set(scores.directions) == set(directions)


@each
@pytest.mark.parametrize("size", [1, 3])
def test_one_score_per_datapoint_whatever_the_batch(name: str, size: int) -> None:
    case = CASES[name]
    metric = case.build()
    for start in range(0, 12, size):
        scores = metric({"outputs": case.outputs[start : start + size], "labels": case.labels[start : start + size]})
        assert scores.keys() == {*metric.DIRECTIONS, *metric.EVIDENCE}
        for key, values in scores.items():
            assert len(values) == size
            assert not values.requires_grad
            assert values.shape == (size,) or key in metric.EVIDENCE
    split = score(case, [[*range(k, k + size)] for k in range(0, 12, size)])
    assert list(split.per_datapoint) == [*range(12)]
    expected = score(case, BATCHES)
    for idx, row in split.per_datapoint.items():
        assert row == pytest.approx(expected.per_datapoint[idx], rel=1e-5, nan_ok=True)
    assert split.aggregated == pytest.approx(expected.aggregated, rel=1e-5, nan_ok=True)


@each
@pytest.mark.parametrize("ranks", [2, 3])
def test_several_ranks_give_what_one_gives(name: str, ranks: int) -> None:
    assert text(score(CASES[name], BATCHES, ranks=ranks)) == text(score(CASES[name], BATCHES))


@each
def test_a_datapoint_that_a_sampler_repeats_counts_once(name: str) -> None:
    assert text(score(CASES[name], [*BATCHES, [0, 1]], ranks=2)) == text(score(CASES[name], BATCHES))


@each
def test_nan_is_visible(name: str) -> None:
    case = CASES[name]
    outputs = case.outputs.clone()
    outputs[5].view(-1)[0] = math.nan
    scores = score(case, BATCHES, outputs=outputs)
    for key in case.build().DIRECTIONS:
        assert math.isnan(scores.per_datapoint[5][key])
        assert all(math.isfinite(row[key]) for idx, row in scores.per_datapoint.items() if idx != 5)
        assert scores.non_finite[key] == 1
        assert math.isnan(scores.aggregated[key])


@each
def test_without_datapoints_it_has_no_scores_and_raises_nothing(name: str) -> None:
    scores = score(CASES[name], [])
    assert scores.per_datapoint == {}
    assert all(math.isnan(scores.aggregated[key]) for key in CASES[name].build().DIRECTIONS)


@each
def test_reset_forgets_everything(name: str) -> None:
    case = CASES[name]
    metric = case.build()
    metric.add_to_buffer(metric({"outputs": case.outputs[:2], "labels": case.labels[:2]}), [0, 1])
    metric.reset_buffer()
    metric.add_to_buffer(metric({"outputs": case.outputs[2:4], "labels": case.labels[2:4]}), [2, 3])
    assert text(metric.summarize()) == text(score(case, [[2, 3]]))
