from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.gradient_stats import GradientStatsDebugger
from endoscope.pages.pickle_pages import one_datapoint


def see(gradient: Any) -> dict[str, Any]:
    return GradientStatsDebugger("fc").process_backward(nn.Identity(), gradient)


def test_keys_and_numbers() -> None:
    g = torch.tensor([[3.0, 0.0, -4.0, 0.0]])
    seen = see(g)
    assert set(seen) == {"layer_name", "gradient_stats"}
    assert seen["layer_name"] == "fc"
    assert seen["gradient_stats"] == {
        "mean": -0.25,
        "std": pytest.approx(g.std().item()),
        "min": -4.0,
        "max": 3.0,
        "l2_norm": 5.0,
        "fraction_zero": 0.5,
        "non_finite": 0,
        "shape": [1, 4],
    }
    assert isinstance(GradientStatsDebugger("fc", calls="all"), BackwardDebugger)


def test_a_batch_is_each_of_its_datapoints() -> None:
    g = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    together = see(g)
    for j in range(3):
        alone, mine = see(g[j : j + 1]), one_datapoint(together, j, 3)
        for name, value in alone["gradient_stats"].items():
            assert mine["gradient_stats"][name] == pytest.approx(value, rel=1e-5), name


def test_vanishing_gradients_keep_their_norm() -> None:
    stats = see(torch.tensor([[3e-30, 4e-30]]))["gradient_stats"]
    assert stats["l2_norm"] == pytest.approx(5e-30)
    assert stats["std"] == pytest.approx(1e-30 / math.sqrt(2))


def test_non_finite_gradients_are_counted() -> None:
    assert see(torch.tensor([[math.nan, math.inf, 1.0]]))["gradient_stats"]["non_finite"] == 2


def test_structures_and_missing_gradients() -> None:
    assert see((None, torch.ones(1, 2)))["gradient_stats"]["mean"] == 1.0
    assert "error" in see(None)
    assert "error" in see((None, None))
