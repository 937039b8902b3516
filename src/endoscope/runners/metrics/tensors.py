"""The tensors of a datapoint that a metric works on, or an error that says what was found in their place."""

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
    """The outputs, or their ``logits`` where they are a dict.

    >>> logits_of({"outputs": {"logits": torch.zeros(1, 2)}}, "ClassificationMetric")
    tensor([[0., 0.]])
    """
    outputs = datapoint.get("outputs")
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise MetricError(f"{who}: the outputs have no 'logits', only {sorted(map(str, outputs))}")
        return _checked(outputs["logits"], "outputs.logits", who)
    return tensor_of(datapoint, "outputs", who)


def precise(t: Tensor) -> Tensor:
    """In float32 at least: halves and integers would lose digits in a sum."""
    return t if t.dtype is torch.float64 else t.float()


def _checked(value: Any, name: str, who: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise MetricError(
            f"{who}: {name} is {type(value).__name__}; expected a tensor; "
            "write a metric of your own for datapoints of another shape"
        )
    return value.detach()
