from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from endoscope.errors import ConfigError
from endoscope.runners.metric import MetricError
from endoscope.runners.metrics.segmentation import SegmentationMetric
from endoscope.runs.scores import Scores

IGNORED = 255


def score(outputs: torch.Tensor, labels: torch.Tensor, classes: int, *, ranks: int = 1, **arguments: Any) -> Scores:
    metrics = [SegmentationMetric(classes, **arguments) for _ in range(ranks)]
    for number, idx in enumerate(torch.arange(len(labels)).split(2)):
        metric = metrics[number % ranks]
        metric.add_to_buffer(metric({"outputs": outputs[idx], "labels": labels[idx]}), idx)
    return metrics[0].merged([metric.partial() for metric in metrics])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(2, 5), st.integers(0, 2**31), st.integers(1, 3), st.booleans())
def test_every_number_is_that_of_scikit_learn(n: int, classes: int, seed: int, ranks: int, ignoring: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, 5, 3, generator=generator)
    labels = torch.randint(classes, (n, 5, 3), generator=generator)
    if ignoring:
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
        labels[:, 0, 0] = 0  # one pixel counts
    scores = score(logits, labels, classes, ranks=ranks, ignore_index=IGNORED if ignoring else None)

    predicted, true = logits.numpy().argmax(1).reshape(n, -1), labels.numpy().reshape(n, -1)
    for i in range(n):
        seen = true[i] != IGNORED
        found = scores.per_datapoint[i]
        assert found["pixel_accuracy"] == pytest.approx(accuracy_score(true[i][seen], predicted[i][seen]))
        expected = jaccard_score(true[i][seen], predicted[i][seen], average="macro")
        assert found["mean_iou"] == pytest.approx(expected)
    seen = true != IGNORED
    assert scores.aggregated["mean_iou"] == pytest.approx(jaccard_score(true[seen], predicted[seen], average="macro"))
    matrix = confusion_matrix(true[seen], predicted[seen], labels=range(classes)).astype(float)
    with np.errstate(invalid="ignore"):
        iou = matrix.diagonal() / (matrix.sum(0) + matrix.sum(1) - matrix.diagonal())
    np.testing.assert_allclose([scores.aggregated[f"iou/{c}"] for c in range(classes)], iou)
    assert scores.directions["iou/0"] == "higher"


def test_the_numbers_of_each_datapoint_are_those_of_torchmetrics() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchmetrics.functional.segmentation import mean_iou

    logits, labels = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
    ours = SegmentationMetric(3)({"outputs": logits, "labels": labels})["mean_iou"]
    theirs = mean_iou(logits.argmax(1), labels, num_classes=3, input_format="index")
    torch.testing.assert_close(ours, theirs)


def test_predicted_classes_are_taken_as_they_are() -> None:
    logits, labels = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    assert score(logits, labels, 3) == score(logits.argmax(1), labels, 3)


def test_volumes_and_sequences_have_pixels_too() -> None:
    for shape in ((6,), (2, 3, 4)):
        labels = torch.randint(2, (2, *shape))
        logits = torch.nn.functional.one_hot(labels, 2).movedim(-1, 1).float()
        assert score(logits, labels, 2).aggregated["mean_iou"] == 1.0


def test_a_class_that_nobody_has_is_left_out_of_the_mean() -> None:
    labels = torch.tensor([[[0, 1]]])
    scores = score(torch.tensor([[[0, 0]]]), labels, 3)
    assert scores.per_datapoint[0]["mean_iou"] == 0.25  # of class 0 a half, of class 1 nothing
    assert scores.aggregated["mean_iou"] == 0.25
    assert math.isnan(scores.aggregated["iou/2"])


def test_over_all_it_is_the_added_pixels_and_not_the_mean_over_datapoints() -> None:
    labels = torch.tensor([[[0, 0, 0, 0]], [[1, 0, 0, 0]]])
    scores = score(torch.zeros_like(labels), labels, 2)
    assert [each["mean_iou"] for each in scores.per_datapoint.values()] == [1.0, 0.375]
    assert scores.aggregated["mean_iou"] == 7 / 16
    assert scores.aggregated["pixel_accuracy"] == 7 / 8


def test_a_nan_among_the_logits_that_count_makes_nan() -> None:
    logits, labels = torch.randn(3, 2, 2, 2), torch.randint(2, (3, 2, 2))
    logits[1, 0, 0, 0] = math.nan
    scores = score(logits, labels, 2)
    assert all(map(math.isnan, scores.per_datapoint[1].values()))
    assert all(map(math.isnan, scores.aggregated.values()))
    assert scores.non_finite == {"mean_iou": 1, "pixel_accuracy": 1}
    labels[1, 0, 0] = IGNORED  # the twin: a pixel that does not count
    scores = score(logits, labels, 2, ignore_index=IGNORED)
    assert scores.non_finite == {"mean_iou": 0, "pixel_accuracy": 0}


def test_a_datapoint_without_a_pixel_that_counts_has_nan_and_adds_nothing() -> None:
    labels = torch.tensor([[[0, 1]], [[IGNORED, IGNORED]]])
    scores = score(torch.tensor([[[0, 1]], [[1, 1]]]), labels, 2, ignore_index=IGNORED)
    assert all(map(math.isnan, scores.per_datapoint[1].values()))
    assert scores.aggregated["mean_iou"] == 1.0


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        (
            torch.zeros(1, 2, 4, 4),
            torch.full((1, 4, 4), 2),
            "hold class 2; expected 0 to 1; give ignore_index=",
        ),
        (torch.zeros(1, 2, 4, 4), torch.full((1, 4, 4), -1), "the labels hold class -1"),
        (torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4).long(), r"\(1, 3, 4, 4\).*expected logits \(B, 2, ...\)"),
        (torch.zeros(1, 2, 4, 4), torch.zeros(1, 8, 8).long(), r"labels \(1, 8, 8\)"),
        (torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4), "labels are torch.float32; expected integers"),
        (torch.zeros(3, 2), torch.zeros(3).long(), r"labels \(3,\)"),
    ],
)
def test_what_it_cannot_score_is_refused(outputs: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(MetricError, match=f"SegmentationMetric: .*{message}"):
        SegmentationMetric(2)({"outputs": outputs, "labels": labels})


def test_no_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_classes=0; expected at least 1"):
        SegmentationMetric(0)
