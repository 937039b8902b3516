"""TorchMetricsMetric: any metric of torchmetrics, computed for each datapoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from endoscope.errors import ConfigError
from endoscope.runners.metric import BaseMetric, MetricError
from endoscope.runners.metrics.tensors import logits_of, tensor_of
from endoscope.runs.scores import Direction


class TorchMetricsMetric(BaseMetric):
    """Scores from torchmetrics' modules (``pip install 'endoscope[metrics]'``), by name.

    >>> from torchmetrics.image import PeakSignalNoiseRatio
    >>> metric = TorchMetricsMetric({"psnr": PeakSignalNoiseRatio(data_range=1.0)})
    >>> metric({"outputs": images, "labels": clean})["psnr"].shape
    torch.Size([16])

    Each module gets one datapoint at a time, as a batch of one: outputs (or their ``logits``), then labels. The score
    over all datapoints is the mean. The direction is the module's ``higher_is_better``; for a module without one, give
    ``directions``. Many modules check values, which waits for the device: pass them ``validate_args=False`` where they
    have that argument. Their distributed synchronisation is switched off: a datapoint belongs to one rank.
    """

    def __init__(self, metrics: Mapping[str, Any], *, directions: Mapping[str, Direction] | None = None) -> None:
        self.metrics = dict(metrics)
        directions = directions or {}
        for name, metric in self.metrics.items():
            if not all(callable(getattr(metric, part, None)) for part in ("update", "compute", "reset", "to")):
                raise ConfigError(
                    f"TorchMetricsMetric: metrics.{name} is {type(metric).__name__}; expected a module of "
                    "torchmetrics, such as torchmetrics.MeanSquaredError()"
                )
            if name not in directions and getattr(metric, "higher_is_better", None) is None:
                raise ConfigError(
                    f"TorchMetricsMetric: {type(metric).__name__} does not say which values are better; "
                    f"give directions={{{name!r}: 'higher'}} or 'lower'"
                )
            metric.sync_on_compute = False
        self.DIRECTIONS = {
            name: directions.get(name) or ("higher" if metric.higher_is_better else "lower")
            for name, metric in self.metrics.items()
        }

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        who = type(self).__name__
        outputs, labels = logits_of(datapoint, who), tensor_of(datapoint, "labels", who)
        if not outputs.ndim or not labels.ndim or len(outputs) != len(labels):
            raise MetricError(
                f"{who}: outputs have shape {tuple(outputs.shape)}, labels {tuple(labels.shape)}; "
                "expected one of each per datapoint, (B, ...)"
            )
        scores = {}
        for name, metric in self.metrics.items():
            metric.to(outputs.device)
            values = [self._score(name, outputs[i : i + 1], labels[i : i + 1]) for i in range(len(outputs))]
            scores[name] = torch.stack(values) if values else outputs.new_empty(0)
        return scores

    def _score(self, name: str, output: Tensor, label: Tensor) -> Tensor:
        metric = self.metrics[name]
        metric.reset()
        metric.update(output, label)
        value = metric.compute()
        metric.reset()
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise MetricError(f"{type(self).__name__}: {name!r} is {what} for one datapoint; expected one number")
        return value.reshape(())
