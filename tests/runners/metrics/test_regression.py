from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from endoscope.runners.metric import MetricError
from endoscope.runners.metrics.regression import RegressionMetric
from endoscope.runs.scores import Scores


def score(outputs: torch.Tensor, labels: torch.Tensor, *, ranks: int = 1) -> Scores:
    metrics = [RegressionMetric() for _ in range(ranks)]
    for number, idx in enumerate(torch.arange(len(labels)).split(3)):
        metric = metrics[number % ranks]
        metric.add_to_buffer(metric({"outputs": outputs[idx], "labels": labels[idx]}), idx)
    return metrics[0].merged([metric.partial() for metric in metrics])


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.sampled_from([(), (1,), (4,), (2, 3)]), st.integers(0, 2**31), st.integers(1, 3))
def test_every_number_is_that_of_scikit_learn(n: int, shape: tuple[int, ...], seed: int, ranks: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randn(n, *shape, generator=generator) + 100  # far from zero: where sums of squares would cancel
    outputs = labels + torch.randn(n, *shape, generator=generator) * 0.3
    scores = score(outputs, labels, ranks=ranks)

    true, found = (t.double().reshape(n, -1).numpy() for t in (labels, outputs))
    for i in range(n):
        assert scores.per_datapoint[i]["absolute_error"] == pytest.approx(np.abs(true[i] - found[i]).mean(), rel=1e-4)
        assert scores.per_datapoint[i]["squared_error"] == pytest.approx(((true[i] - found[i]) ** 2).mean(), rel=1e-4)
    true, found = true.ravel(), found.ravel()
    assert scores.aggregated == pytest.approx(
        {
            "absolute_error": mean_absolute_error(true, found),
            "squared_error": mean_squared_error(true, found),
            "rmse": math.sqrt(mean_squared_error(true, found)),
            "r2": r2_score(true, found),
        },
        rel=1e-4,
    )


def test_dimensions_of_size_one_may_be_missing() -> None:
    outputs, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    assert RegressionMetric()({"outputs": outputs, "labels": labels})["squared_error"].tolist() == [0.0, 4.0]


def test_integer_labels_are_numbers() -> None:
    found = RegressionMetric()({"outputs": torch.tensor([1.5]), "labels": torch.tensor([1])})
    assert found["absolute_error"].tolist() == [0.5]


def test_r2_is_not_defined_without_a_spread() -> None:
    assert math.isnan(score(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])).aggregated["r2"])
    assert math.isnan(RegressionMetric().summarize().aggregated["r2"])


def test_a_nan_is_kept_and_reaches_every_number() -> None:
    scores = score(torch.tensor([1.0, math.nan, 3.0]), torch.tensor([1.0, 2.0, 3.5]))
    assert all(map(math.isnan, scores.aggregated.values()))
    assert scores.non_finite == {"absolute_error": 1, "squared_error": 1}
    assert scores.per_datapoint[2] == {"absolute_error": 0.5, "squared_error": 0.25}


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((2, 3), (2, 4)), ((2, 3), (2,)), ((2, 2, 3), (2, 3, 2)), ((), ())])
def test_shapes_that_differ_are_refused_not_broadcast(shapes: Any) -> None:
    outputs, labels = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(MetricError, match=r"RegressionMetric: outputs have shape .*; expected the same shape"):
        RegressionMetric()({"outputs": outputs, "labels": labels})


def test_outputs_that_are_a_dict_give_their_logits() -> None:
    labels = torch.tensor([1.0, 4.0])
    for outputs in (torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])):
        scores = RegressionMetric()({"outputs": {"logits": outputs}, "labels": labels})
        assert scores["squared_error"].tolist() == [0.0, 4.0]
