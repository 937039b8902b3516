from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from endoscope.debuggers.activation_stats import ActivationStatsDebugger
from endoscope.pages.pickle_pages import one_datapoint

NUMBERS = {
    "mean", "std", "min", "max", "l1_norm", "l2_norm", "sparsity", "positive_ratio", "saturation_low",
    "saturation_high", "non_finite",
}  # fmt: skip


def see(output: Any, module: nn.Module | None = None) -> dict[str, Any]:
    return ActivationStatsDebugger("layer").process_forward(module or nn.Identity(), (), output)


def test_keys_and_numbers() -> None:
    x = torch.randn(1, 4, 5, 6, generator=torch.Generator().manual_seed(0)).relu() * 2
    seen = see(x, nn.ReLU())
    assert set(seen) == {"layer_name", "module_type", "activation_stats", "sample_values"}
    assert (seen["layer_name"], seen["module_type"]) == ("layer", "ReLU")
    stats = seen["activation_stats"]
    assert set(stats) == NUMBERS | {"shape", "channel_dim", "channel_means", "channel_stds"}
    assert stats["shape"] == [1, 4, 5, 6]
    assert stats["l1_norm"] == pytest.approx(x.abs().mean().item(), rel=1e-5)
    assert stats["l2_norm"] == pytest.approx(x.norm().item(), rel=1e-5)
    assert stats["sparsity"] == pytest.approx((x == 0).double().mean().item())
    assert stats["positive_ratio"] == pytest.approx((x > 0).double().mean().item())
    assert stats["saturation_low"] == 0.0
    assert stats["saturation_high"] == pytest.approx((x >= 1).double().mean().item())
    assert seen["sample_values"] == x.flatten()[:100].tolist()


@pytest.mark.parametrize(
    ("shape", "module", "dim"),
    [
        ((1, 8), nn.Linear(8, 8), None),
        ((1, 9, 8), nn.Linear(8, 8), 2),
        ((1, 8, 9), nn.Conv1d(8, 8, 1), 1),
        ((1, 8, 3, 3), nn.Identity(), 1),
        ((1, 8, 2, 3, 3), nn.Identity(), 1),
    ],
)
def test_channels_of_each_kind_of_output(shape: tuple[int, ...], module: nn.Module, dim: int | None) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    stats = see(x, module)["activation_stats"]
    if dim is None:
        assert not {"channel_dim", "channel_means", "channel_stds"} & set(stats)
        return
    others = [d for d in range(x.ndim) if d != dim]
    assert stats["channel_dim"] == dim
    assert np.allclose(stats["channel_means"], x.mean(others), atol=1e-6)
    assert np.allclose(stats["channel_stds"], x.std(others), atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 8), (4, 9, 8), (4, 3, 5, 5), (4, 3, 2, 5, 5)])
def test_a_batch_is_each_of_its_datapoints(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    together = see(x)
    for j in range(4):
        alone, mine = see(x[j : j + 1]), one_datapoint(together, j, 4)
        assert mine["sample_values"] == alone["sample_values"]
        assert set(mine["activation_stats"]) == set(alone["activation_stats"])
        for name, value in alone["activation_stats"].items():
            assert mine["activation_stats"][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_sample_values_are_floats_of_any_type() -> None:
    for x in (torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bfloat16), torch.ones(1, 3).int()):
        assert see(x)["sample_values"] == [1.0, 1.0, 1.0]
        assert all(type(v) is float for v in see(x)["sample_values"])


def test_non_finite_values() -> None:
    stats = see(torch.tensor([[1.0, math.nan, 0.0, 2.0]]))["activation_stats"]
    assert stats["non_finite"] == 1
    assert math.isnan(stats["l2_norm"])
    assert (stats["sparsity"], stats["positive_ratio"]) == (0.25, 0.5)


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 3, 0, 0)])
def test_nothing_to_measure(shape: tuple[int, ...]) -> None:
    assert see(torch.zeros(shape))["activation_stats"]["non_finite"] == 0


def test_first_tensor_or_an_error() -> None:
    assert see((torch.ones(1, 2), None))["activation_stats"]["mean"] == 1.0
    assert see("text") == {"error": "Output is not a tensor"}
