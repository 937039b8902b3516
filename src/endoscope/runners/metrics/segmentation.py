"""SegmentationMetric: one class per pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.errors import ConfigError
from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.metrics.tensors import check_classes, class_labels, logits_of
from endoscope.runs.scores import Direction


class SegmentationMetric(BaseMetric):
    """Mean IoU and pixel accuracy of each datapoint; over all, also the IoU of each class.

    >>> metric = SegmentationMetric(num_classes=2, ignore_index=255)
    >>> metric({"outputs": torch.zeros(1, 2, 4, 4), "labels": torch.zeros(1, 4, 4, dtype=torch.long)})["mean_iou"]
    tensor([1.])

    Outputs are logits (B, C, ...), a dict that has them as ``logits``, or the predicted classes as integers (B, ...).
    Labels are integers (B, ...). Pixels with the label ``ignore_index`` do not count. The IoU of a class is the number
    of pixels that labels and predictions share over the number that either has; a class that neither has is left out of
    the mean, and its own ``iou/N`` is NaN. Over all datapoints ``mean_iou`` is computed from the added pixels, not as
    the mean over datapoints. A datapoint with a NaN among the logits that count, or without a pixel that counts, has
    NaN; the first makes the numbers over all NaN as well.
    """

    DIRECTIONS: Mapping[str, Direction] = {"mean_iou": "higher", "pixel_accuracy": "higher"}
    EVIDENCE = ("class_pixels",)
    BY_CLASS = ("iou",)

    def __init__(self, num_classes: int, *, ignore_index: int | None = None) -> None:
        if num_classes < 1:
            raise ConfigError(f"SegmentationMetric: num_classes={num_classes}; expected at least 1")
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.AGGREGATED = {f"iou/{n}": "higher" for n in range(num_classes)}

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        predicted, labels, has_nan = self._pixels(datapoint)
        counts = labels != self.ignore_index if self.ignore_index is not None else torch.ones_like(labels).bool()
        spare = self.num_classes  # an extra class for pixels that do not count
        hits = self._by_class(labels.where(counts & (predicted == labels), spare))
        true = self._by_class(labels.where(counts, spare))
        claimed = self._by_class(predicted.where(counts, spare))
        unclear = (has_nan & counts).any(1)
        iou = hits.float() / (true + claimed - hits)  # 0 / 0 is NaN: a class that neither has
        return {
            "mean_iou": iou.nanmean(1).masked_fill(unclear, torch.nan),
            "pixel_accuracy": (hits.sum(1).float() / true.sum(1)).masked_fill(unclear, torch.nan),
            "class_pixels": torch.stack((hits, true, claimed), 1).masked_fill(unclear[:, None, None], -1),
        }

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        pixels = evidence["class_pixels"].reshape(-1, 3, self.num_classes).double()
        hits, true, claimed = pixels.sum(0)
        iou = hits / (true + claimed - hits)
        if bool((pixels < 0).any()):
            iou = torch.full_like(iou, torch.nan)
        by_class = {name: float(value) for name, value in zip(self.AGGREGATED, iou, strict=True)}
        return {**super().aggregate(scores, evidence, sums), "mean_iou": float(iou.nanmean()), **by_class}

    def _pixels(self, datapoint: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Predicted classes, true classes, and where a logit is NaN, each (B, pixels)."""
        who = type(self).__name__
        outputs, labels = logits_of(datapoint, who), class_labels(datapoint, who)
        is_logits = outputs.is_floating_point()
        classes = (self.num_classes,) if is_logits else ()
        expected = (*labels.shape[:1], *classes, *labels.shape[1:])
        if labels.ndim < 2 or outputs.shape != expected:
            raise MetricError(
                f"{who}: outputs have shape {tuple(outputs.shape)}, labels {tuple(labels.shape)}; expected logits "
                f"(B, {self.num_classes}, ...) or classes (B, ...), and labels (B, ...)"
            )
        hint = "; give ignore_index= for pixels that do not count"
        check_classes(labels, self.num_classes, who, ignored=self.ignore_index, hint=hint)
        predicted = outputs.argmax(1) if is_logits else outputs.long()
        has_nan = outputs.isnan().any(1) if is_logits else torch.zeros_like(labels).bool()
        return predicted.flatten(1), labels.flatten(1), has_nan.flatten(1)

    def _by_class(self, classes: Tensor) -> Tensor:
        """Pixels of each datapoint in each class, (B, C). Unlike bincount, it does not wait for the device."""
        counts = classes.new_zeros(len(classes), self.num_classes + 1)
        return counts.scatter_add_(1, classes, torch.ones_like(classes))[:, :-1]
