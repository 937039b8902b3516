"""RegressionMetric: numbers as labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.metrics.tensors import logits_of, precise, tensor_of
from endoscope.runs.scores import Direction


class RegressionMetric(BaseMetric):
    """Absolute and squared error of each datapoint, averaged over its values; RMSE and R² over all.

    >>> metric = RegressionMetric()
    >>> metric({"outputs": torch.tensor([1.0, 2.0]), "labels": torch.tensor([1.0, 4.0])})["squared_error"]
    tensor([0., 4.])

    Outputs (or their ``logits`` if they are a dict) and labels have the same shape (B, ...); dimensions of size 1 may
    be missing from either. ``rmse`` is the root of the mean ``squared_error``. ``r2`` is over all values of all
    datapoints together: 1 is perfect, 0 is no better than the mean label; it is NaN, because undefined, if all labels
    are equal.
    """

    DIRECTIONS: Mapping[str, Direction] = {"absolute_error": "lower", "squared_error": "lower"}
    AGGREGATED: Mapping[str, Direction] = {"rmse": "lower", "r2": "higher"}
    EVIDENCE = ("label_mean", "label_spread", "label_count")

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        who = type(self).__name__
        outputs, labels = precise(logits_of(datapoint, who)), precise(tensor_of(datapoint, "labels", who))
        if not outputs.ndim or not labels.ndim or len(outputs) != len(labels) or _sizes(outputs) != _sizes(labels):
            raise MetricError(
                f"{who}: outputs have shape {tuple(outputs.shape)}, labels {tuple(labels.shape)}; "
                "expected the same shape, (B, ...)"
            )
        labels = labels.reshape(len(labels), -1)
        error = outputs.reshape(labels.shape) - labels
        labels = labels if labels.device.type == "mps" else labels.double()  # MPS has no float64
        mean = labels.mean(1)
        return {
            "absolute_error": error.abs().mean(1),
            "squared_error": error.square().mean(1),
            "label_mean": mean,
            "label_spread": (labels - mean[:, None]).square().sum(1),
            "label_count": torch.full_like(mean, labels.shape[1]),
        }

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        squared = scores["squared_error"]
        mean, spread, count = (evidence[name].double() for name in self.EVIDENCE)
        overall = (mean * count).sum() / count.sum()
        total = spread.sum() + (count * (mean - overall).square()).sum()
        r2 = 1 - (squared * count).sum() / total if total > 0 else torch.tensor(torch.nan)
        rmse = squared.mean().sqrt()
        return {**super().aggregate(scores, evidence, sums), "rmse": float(rmse), "r2": float(r2)}


def _sizes(t: Tensor) -> list[int]:
    return [size for size in t.shape[1:] if size != 1]
