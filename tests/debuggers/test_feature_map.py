from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from endoscope.debuggers.feature_map import FeatureMapDebugger
from endoscope.pages.pickle_pages import one_datapoint


def see(output: Any) -> dict[str, Any]:
    return FeatureMapDebugger("conv").process_forward(nn.Identity(), (), output)


def test_keys_and_numbers() -> None:
    x = torch.randn(1, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    seen = see(x)
    assert set(seen) == {"feature_map", "stats", "layer_name"}
    assert seen["layer_name"] == "conv"
    assert seen["feature_map"] is x
    assert set(seen["stats"]) == {"mean", "std", "min", "max", "non_finite", "shape"}
    assert seen["stats"]["shape"] == [1, 4, 5, 6]
    for name in ("mean", "std", "min", "max"):
        assert seen["stats"][name] == pytest.approx(getattr(x, name)().item(), rel=1e-5)
    assert seen["stats"]["non_finite"] == 0


def test_a_batch_is_each_of_its_datapoints() -> None:
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    together = see(x)
    for j in range(5):
        alone, mine = see(x[j : j + 1]), one_datapoint(together, j, 5)
        assert torch.equal(mine["feature_map"], alone["feature_map"])
        assert mine["stats"].pop("shape") == alone["stats"].pop("shape") == [1, 3, 4, 4]
        assert mine["stats"] == pytest.approx(alone["stats"], rel=1e-5)


def test_non_finite_values_belong_to_their_datapoint() -> None:
    x = torch.ones(2, 3)
    x[1, 0] = math.inf
    stats = see(x)["stats"]
    assert stats["non_finite"] == [0, 1]
    assert stats["max"] == [1.0, math.inf]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize("wrap", [lambda t: (t, None), lambda t: {"x": 1, "y": [t]}, lambda t: Pair(t, t + 1)])
def test_first_tensor_of_a_structure(wrap: Any) -> None:
    x = torch.zeros(1, 2)
    assert see(wrap(x))["feature_map"] is x


def test_a_model_output() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    x = torch.zeros(1, 2, 3)
    assert see(outputs.BaseModelOutput(last_hidden_state=x))["feature_map"] is x


@pytest.mark.parametrize("output", [None, "text", 3, (), {"a": None}])
def test_no_tensor_is_an_error_not_an_exception(output: Any) -> None:
    assert see(output) == {"error": "Output is not a tensor"}


def test_as_a_hook_it_owns_what_it_saw() -> None:
    layer, debugger = nn.ReLU(), FeatureMapDebugger("relu", calls="all")
    layer.register_forward_hook(debugger.forward_hook_fn)
    out = layer(torch.ones(1, 3, requires_grad=True))
    out.data.zero_()
    assert debugger.calls == "all"
    assert debugger.last_capture["feature_map"].tolist() == [[1.0, 1.0, 1.0]]
    assert not debugger.last_capture["feature_map"].requires_grad
