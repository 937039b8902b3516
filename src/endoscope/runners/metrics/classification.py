"""ClassificationMetric: one class for each datapoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.metrics.tensors import logits_of, precise, tensor_of
from endoscope.runs.scores import Direction


class ClassificationMetric(BaseMetric):
    """Accuracy, confidence and cross-entropy of each datapoint; macro F1 over all.

    >>> metric = ClassificationMetric()
    >>> metric({"outputs": torch.tensor([[0.0, 2.0]]), "labels": torch.tensor([1])})["accuracy"]
    tensor([1.])

    Outputs are logits: (B, C) for classes, (B,) or (B, 1) for yes and no; or a dict that has them as ``logits``. Labels
    are integers, (B,) or (B, 1). ``confidence`` is the probability that the model gives to the true class, ``loss`` the
    cross-entropy. ``macro_f1`` is the mean F1 of the classes that occur, as labels or as predictions. A datapoint with
    a NaN among its logits has no prediction: its scores are NaN, and so are ``accuracy`` and ``macro_f1`` over all.
    """

    DIRECTIONS: Mapping[str, Direction] = {"accuracy": "higher", "confidence": "higher", "loss": "lower"}
    AGGREGATED: Mapping[str, Direction] = {"macro_f1": "higher"}
    EVIDENCE = ("predicted_class", "true_class")

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        logits = precise(logits_of(datapoint, type(self).__name__))
        labels = tensor_of(datapoint, "labels", type(self).__name__)
        logits, labels = self._checked(logits, labels)
        unclear = logits.isnan().any(1)
        predicted = logits.argmax(1)
        # Not F.cross_entropy, which takes -100 for a label to be ignored and calls its loss 0.
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

    def _checked(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits as (B, C) and labels as (B,)."""
        who, found = (
            type(self).__name__,
            f"outputs of shape {tuple(logits.shape)}, labels of shape {tuple(labels.shape)}",
        )
        if logits.ndim not in (1, 2) or labels.shape not in ((len(logits),), (len(logits), 1)):
            raise MetricError(
                f"{who}: {found}; expected logits (B, C), (B,) or (B, 1) and labels (B,); "
                "for one class a pixel there is SegmentationMetric"
            )
        if labels.is_floating_point() or labels.is_complex():
            raise MetricError(f"{who}: labels are {labels.dtype}; expected integers, the number of the true class")
        if logits.ndim == 1 or logits.shape[1] == 1:
            # The logistic function is softmax over (0, logit), so two classes cover both cases.
            yes = logits.reshape(-1, 1)
            logits = torch.cat((torch.zeros_like(yes), yes), 1)
        labels = labels.reshape(-1).long()
        classes = logits.shape[1]
        if labels.is_cpu and len(labels):  # elsewhere looking would mean waiting; there the gather stops the device
            low, high = (int(t) for t in labels.aminmax())
            if low < 0 or high >= classes:
                wrong = low if low < 0 else high
                raise MetricError(f"{who}: the labels hold class {wrong}; expected 0 to {classes - 1}")
        return logits, labels


def _macro_f1(predicted: Tensor, true: Tensor) -> float:
    if not len(true) or int(predicted.min()) < 0:
        return float("nan")
    classes = int(torch.maximum(predicted, true).max()) + 1
    hits = torch.bincount(true[predicted == true], minlength=classes).double()
    occurrences = torch.bincount(true, minlength=classes) + torch.bincount(predicted, minlength=classes)
    occurs = occurrences > 0
    return float((2 * hits[occurs] / occurrences[occurs]).mean())
