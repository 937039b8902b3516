from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from endoscope import SequentialDebugger, load_debug_outputs
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


def captured(debugger: FeatureMapDebugger, tmp_path: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a `SequentialDebugger` returns and stores of a layer that is followed by an in-place one."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True))
    config = [{"name": "map", "debugger_config": debugger}]
    with SequentialDebugger(config, model, output_dir=tmp_path / "debugger", **options) as sequential:
        sequential.enabled = True
        outputs = model(torch.randn(2, 1, 6, 6))
        seen = sequential({"outputs": outputs, "meta_info": {"idx": [3, 5]}}, model)
    return seen, load_debug_outputs(tmp_path)[5]


def test_in_a_run_the_numbers_are_those_of_the_layer(tmp_path: Path) -> None:
    seen, stored = captured(FeatureMapDebugger("0"), tmp_path)
    expected = see(seen["map"]["feature_map"])
    assert seen["map"]["stats"] == expected["stats"]
    assert min(seen["map"]["stats"]["min"]) < 0  # not of what the ReLU made of it
    assert stored["map"]["stats"]["mean"] == expected["stats"]["mean"][1]
    assert stored["map"]["layer_name"] == "0"


def test_in_a_run_every_call_has_its_numbers(tmp_path: Path) -> None:
    seen, _ = captured(FeatureMapDebugger("0", calls="all"), tmp_path)
    assert [sorted(call) for call in seen["map"]] == [["feature_map", "layer_name", "stats"]]


def test_a_subclass_that_processes_otherwise_is_asked(tmp_path: Path) -> None:
    class Doubled(FeatureMapDebugger):
        def process_forward(self, module: nn.Module, input: Any, output: Any) -> dict[str, Any]:
            return {**super().process_forward(module, input, output), "double": output * 2}

    seen, _ = captured(Doubled("0"), tmp_path)
    assert torch.equal(seen["map"]["double"], seen["map"]["feature_map"] * 2)
