"""ClassificationMetric: one class per datapoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.metrics.tensors import check_classes, class_labels, logits_of, precise
from endoscope.runs.scores import Direction


class ClassificationMetric(BaseMetric):
    """Accuracy, confidence and cross-entropy of each datapoint; macro F1 over all.

    >>> metric = ClassificationMetric()
    >>> metric({"outputs": torch.tensor([[0.0, 2.0]]), "labels": torch.tensor([1])})["accuracy"]
    tensor([1.])

    Outputs are logits: (B, C) for classes, (B,) or (B, 1) for yes and no; or a dict that has them as ``logits``. Labels
    are integers, (B,) or (B, 1). ``confidence`` is the probability of the true class, ``loss`` the cross-entropy.
    ``macro_f1`` is the mean F1 of the classes that occur, as labels or as predictions. A datapoint with a NaN among its
    logits has no prediction: its scores are NaN, and so are ``accuracy`` and ``macro_f1`` over all.
    """

    DIRECTIONS: Mapping[str, Direction] = {"accuracy": "higher", "confidence": "higher", "loss": "lower"}
    AGGREGATED: Mapping[str, Direction] = {"macro_f1": "higher"}
    EVIDENCE = ("predicted_class", "true_class")

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        logits, labels = self._logits_and_labels(datapoint)
        unclear = logits.isnan().any(1)
        predicted = logits.argmax(1)
        # Not F.cross_entropy, which ignores the label -100 and gives it a loss of 0.
        loss = -logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)
        return {
            "accuracy": (predicted == labels).to(loss.dtype).masked_fill(unclear, torch.nan),
            "confidence": (-loss).exp(),
            "loss": loss,
            "predicted_class": predicted.masked_fill(unclear, -1),
            "true_class": labels,
        }

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        f1 = _macro_f1(evidence["predicted_class"].long(), evidence["true_class"].long())
        return {**super().aggregate(scores, evidence, sums), "macro_f1": f1}

    def _logits_and_labels(self, datapoint: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Logits as (B, C) and labels as (B,)."""
        who = type(self).__name__
        logits, labels = precise(logits_of(datapoint, who)), class_labels(datapoint, who)
        if logits.ndim not in (1, 2) or labels.shape not in ((len(logits),), (len(logits), 1)):
            raise MetricError(
                f"{who}: outputs of shape {tuple(logits.shape)}, labels of shape {tuple(labels.shape)}; expected "
                "logits (B, C), (B,) or (B, 1) and labels (B,); for one class per pixel use SegmentationMetric"
            )
        if logits.ndim == 1 or logits.shape[1] == 1:
            yes = logits.reshape(-1, 1)  # the logistic function is softmax over (0, logit)
            logits = torch.cat((torch.zeros_like(yes), yes), 1)
        labels = labels.reshape(-1)
        check_classes(labels, logits.shape[1], who)
        return logits, labels


def _macro_f1(predicted: Tensor, true: Tensor) -> float:
    if not len(true) or int(predicted.min()) < 0:
        return float("nan")
    classes = int(torch.maximum(predicted, true).max()) + 1
    hits = torch.bincount(true[predicted == true], minlength=classes).double()
    occurrences = torch.bincount(true, minlength=classes) + torch.bincount(predicted, minlength=classes)
    occurs = occurrences > 0
    return float((2 * hits[occurs] / occurrences[occurs]).mean())
