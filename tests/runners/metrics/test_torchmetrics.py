from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from endoscope.config import build_from_config
from endoscope.errors import ConfigError
from endoscope.runners.metric import MetricError
from endoscope.runners.metrics.torchmetrics import TorchMetricsMetric

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the many packages that torchmetrics imports
    import torchmetrics
    from torchmetrics.image import PeakSignalNoiseRatio


def test_each_datapoint_is_scored_alone() -> None:
    outputs, labels = torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8)
    node = {
        "class": TorchMetricsMetric,
        "args": {
            "metrics": {
                "psnr": {"class": PeakSignalNoiseRatio, "args": {"data_range": 1.0}},
                "mse": {"class": torchmetrics.MeanSquaredError, "args": {}},
            }
        },
    }
    metric = build_from_config(node)
    for idx in (torch.tensor([0, 1]), torch.tensor([2])):
        metric.add_to_buffer(metric({"outputs": outputs[idx], "labels": labels[idx]}), idx)
    scores = metric.summarize()
    assert scores.directions == {"psnr": "higher", "mse": "lower"}
    errors = (outputs - labels).square().mean((1, 2, 3)).tolist()
    for i, error in enumerate(errors):
        assert scores.per_datapoint[i] == pytest.approx({"mse": error, "psnr": -10 * math.log10(error)}, rel=1e-4)
    assert scores.aggregated["mse"] == pytest.approx(sum(errors) / 3, rel=1e-5)


def test_a_module_without_a_direction_needs_one() -> None:
    with pytest.raises(ConfigError, match="MeanMetric does not say which values are better; give directions={'mean'"):
        TorchMetricsMetric({"mean": torchmetrics.MeanMetric()})
    metric = TorchMetricsMetric({"mean": torchmetrics.MeanMetric()}, directions={"mean": "lower"})
    assert metric.DIRECTIONS == {"mean": "lower"}


def test_what_is_no_module_of_torchmetrics_is_refused() -> None:
    with pytest.raises(ConfigError, match="metrics.psnr is function; expected a module of torchmetrics"):
        TorchMetricsMetric({"psnr": torchmetrics.functional.mean_squared_error})


@pytest.mark.parametrize(
    ("metrics", "outputs", "message"),
    [
        ({"mse": torchmetrics.MeanSquaredError()}, torch.zeros(3, 2), r"outputs have shape \(3, 2\), labels \(2, 2\)"),
        ({"mse": torchmetrics.MeanSquaredError(num_outputs=2)}, torch.zeros(2, 2), r"'mse' is shape \(2,\) for one"),
    ],
)
def test_what_gives_no_score_for_a_datapoint_is_refused(metrics: Any, outputs: torch.Tensor, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        TorchMetricsMetric(metrics)({"outputs": outputs, "labels": torch.zeros(2, 2)})
