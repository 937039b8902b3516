from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss

from endoscope.runners.metric import MetricError
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runs.scores import Scores


def score(logits: Any, labels: torch.Tensor, *, batch: int = 7, ranks: int = 1) -> Scores:
    metrics = [ClassificationMetric() for _ in range(ranks)]
    every = torch.arange(len(labels))
    for number, idx in enumerate(every.split(batch)):
        metric = metrics[number % ranks]
        metric.add_to_buffer(metric({"outputs": logits[idx], "labels": labels[idx]}), idx)
    return metrics[0].merged([metric.partial() for metric in metrics])


def column(scores: Scores, name: str) -> np.ndarray[Any, Any]:
    return np.array([each[name] for each in scores.per_datapoint.values()])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 2**31), st.integers(1, 3))
def test_every_number_is_that_of_scikit_learn(n: int, classes: int, seed: int, ranks: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator) * 3
    labels = torch.randint(classes, (n,), generator=generator)
    scores = score(logits, labels, ranks=ranks)

    exact = logits.double().numpy()
    probabilities = np.exp(exact - exact.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    predicted, true = exact.argmax(1), labels.numpy()
    own = probabilities[np.arange(n), true]
    np.testing.assert_array_equal(column(scores, "accuracy"), predicted == true)
    np.testing.assert_allclose(column(scores, "confidence"), own, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(column(scores, "loss"), -np.log(own), rtol=1e-4, atol=1e-6)
    assert scores.aggregated["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert scores.aggregated["loss"] == pytest.approx(
        log_loss(true, probabilities, labels=range(classes)), rel=1e-4, abs=1e-6
    )
    assert scores.aggregated["macro_f1"] == pytest.approx(f1_score(true, predicted, average="macro", zero_division=0))
    matrix = confusion_matrix(true, predicted, labels=range(classes))
    occurs = matrix.sum(0) + matrix.sum(1) > 0
    by_hand = (2 * matrix.diagonal()[occurs] / (matrix.sum(0) + matrix.sum(1))[occurs]).mean()
    assert scores.aggregated["macro_f1"] == pytest.approx(by_hand)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_yes_and_no(shape: tuple[int, ...]) -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 1, 0, 0])
    scores = score(logits.reshape(shape), labels.reshape(shape))
    yes = 1 / (1 + np.exp(-logits.double().numpy()))
    own = np.where(labels.numpy() == 1, yes, 1 - yes)
    np.testing.assert_array_equal(column(scores, "accuracy"), [1, 0, 0, 1])
    np.testing.assert_allclose(column(scores, "confidence"), own, rtol=1e-6)
    np.testing.assert_allclose(column(scores, "loss"), -np.log(own), rtol=1e-6)
    assert scores.aggregated["macro_f1"] == pytest.approx(f1_score(labels, yes > 0.5, average="macro"))


def test_the_logits_may_stand_in_a_dict() -> None:
    logits, labels = torch.eye(3), torch.arange(3)
    metric = ClassificationMetric()
    plain, nested = (metric({"outputs": o, "labels": labels}) for o in (logits, {"logits": logits, "hidden": None}))
    assert all(torch.equal(plain[name], nested[name]) for name in plain)


def test_a_nan_among_the_logits_is_no_prediction() -> None:
    logits = torch.tensor([[math.nan, 0.0], [2.0, 0.0]])  # argmax would call the first one class 0, and right
    scores = score(logits, torch.tensor([0, 0]))
    assert all(map(math.isnan, scores.per_datapoint[0].values()))
    assert all(map(math.isfinite, scores.per_datapoint[1].values()))
    assert all(map(math.isnan, scores.aggregated.values()))
    assert scores.non_finite == {"accuracy": 1, "confidence": 1, "loss": 1}


def test_a_true_class_without_any_probability_has_an_infinite_loss() -> None:
    scores = score(torch.tensor([[-math.inf, 0.0]]), torch.tensor([0]))
    assert scores.per_datapoint[0] == {"accuracy": 0.0, "confidence": 0.0, "loss": math.inf}


def test_half_precision_is_scored_in_float32() -> None:
    logits = torch.randn(5, 3).to(torch.bfloat16)
    labels = torch.tensor([0, 1, 2, 0, 1])
    assert score(logits, labels).per_datapoint == score(logits.float(), labels).per_datapoint


def test_without_datapoints_all_is_nan() -> None:
    assert all(map(math.isnan, ClassificationMetric().summarize().aggregated.values()))


def test_scores_carry_no_gradient() -> None:
    found = ClassificationMetric()({"outputs": torch.randn(2, 3, requires_grad=True), "labels": torch.tensor([0, 1])})
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize(
    ("datapoint", "message"),
    [
        ({"outputs": torch.zeros(2, 3, 4, 4), "labels": torch.zeros(2).long()}, r"\(2, 3, 4, 4\).*SegmentationMetric"),
        (
            {"outputs": torch.zeros(2, 3), "labels": torch.zeros(3).long()},
            r"outputs of shape \(2, 3\), labels of",
        ),
        ({"outputs": torch.zeros(2, 3), "labels": torch.zeros(2)}, "labels are torch.float32; expected integers"),
        ({"outputs": torch.zeros(1, 3), "labels": torch.tensor([3])}, "the labels hold class 3; expected 0 to 2"),
        ({"outputs": torch.zeros(1, 3), "labels": torch.tensor([-100])}, "the labels hold class -100; expected 0 to 2"),
        ({"outputs": torch.zeros(1), "labels": torch.tensor([2])}, "the labels hold class 2; expected 0 to 1"),
        ({"outputs": {"scores": 1}, "labels": torch.tensor([0])}, r"the outputs have no 'logits', only \['scores'\]"),
        ({"outputs": [1.0], "labels": torch.tensor([0])}, "outputs is list; expected a tensor"),
        ({"labels": torch.tensor([0])}, r"the datapoint has no 'outputs', only \['labels'\]"),
    ],
)
def test_what_it_cannot_score_is_refused(datapoint: dict[str, Any], message: str) -> None:
    with pytest.raises(MetricError, match=f"ClassificationMetric: .*{message}"):
        ClassificationMetric()(datapoint)
