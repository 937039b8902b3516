"""The tensors of a datapoint that a metric works on, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.runners.metric import MetricError


def tensor_of(datapoint: Mapping[str, Any], name: str, who: str) -> Tensor:
    """``datapoint[name]``, detached."""
    if name not in datapoint:
        raise MetricError(f"{who}: the datapoint has no {name!r}, only {sorted(map(str, datapoint))}")
    return _checked(datapoint[name], name, who)


def logits_of(datapoint: Mapping[str, Any], who: str) -> Tensor:
    """The outputs, or their ``logits`` if they are a dict.

    >>> logits_of({"outputs": {"logits": torch.zeros(1, 2)}}, "ClassificationMetric")
    tensor([[0., 0.]])
    """
    outputs = datapoint.get("outputs")
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise MetricError(f"{who}: the outputs have no 'logits', only {sorted(map(str, outputs))}")
        return _checked(outputs["logits"], "outputs.logits", who)
    return tensor_of(datapoint, "outputs", who)


def class_labels(datapoint: Mapping[str, Any], who: str) -> Tensor:
    """The labels, which must be integers, as int64."""
    labels = tensor_of(datapoint, "labels", who)
    if labels.is_floating_point() or labels.is_complex():
        raise MetricError(f"{who}: labels are {labels.dtype}; expected integers, the numbers of the classes")
    return labels.long()


def check_classes(labels: Tensor, count: int, who: str, *, ignored: int | None = None, hint: str = "") -> None:
    """Refuse a class outside 0 to ``count - 1``. On the CPU only: elsewhere this would wait for the device."""
    if not labels.is_cpu:
        return
    wrong = labels[(labels < 0) | (labels >= count)]
    wrong = wrong if ignored is None else wrong[wrong != ignored]
    if len(wrong):
        raise MetricError(f"{who}: the labels hold class {int(wrong[0])}; expected 0 to {count - 1}{hint}")


def precise(t: Tensor) -> Tensor:
    """In float32 at least: sums of halves and integers would lose digits."""
    return t if t.dtype is torch.float64 else t.float()


def _checked(value: Any, name: str, who: str) -> Tensor:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise MetricError(f"{who}: {name} is {kind}; expected a tensor; write a metric of your own for other data")
    return value.detach()
