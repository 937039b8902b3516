"""nn.TransformerEncoderLayer in evaluation is one fused kernel, which torch gives up when it finds a hook on its parts.

The fused kernel gives other bits than the parts do, so torch must find none of ours.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Output, node
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from endoscope import SequentialDebugger, load_debug_outputs

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LAYERS = ["*", "layers.0", "layers.1.linear2", ""]


def encoder(*, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(7, 33, dtype=torch.bool)
    mask[0, 16:] = mask[3, 30:] = True
    return torch.randn(7, 33, 64, generator=generator), mask


@contextlib.contextmanager
def watched(model: nn.Module, layer: str, folder: Path) -> Iterator[SequentialDebugger]:
    debugger = SequentialDebugger([node("output", Output, layer_name=layer)], model, output_dir=folder)
    debugger.enabled = True
    yield debugger
    debugger.close()


def fused_calls(run: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return sum(e.count for e in seen.key_averages() if e.key == "aten::_transformer_encoder_layer_fwd")


@pytest.fixture(params=[True, False], ids=["fused", "in parts"])
def fused(request: pytest.FixtureRequest) -> Iterator[bool]:
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_bits(layer: str, mode: Any, norm_first: bool, fused: bool, folder: Path) -> None:
    model, (x, mask) = encoder(norm_first=norm_first), inputs()
    with mode():
        expected = model(x, src_key_padding_mask=mask)
        with watched(model, layer, folder):
            found = model(x, src_key_padding_mask=mask)
    assert torch.equal(found, expected)


def test_twin_a_hook_of_another_kind_changes_bits() -> None:
    model, (x, mask) = encoder(norm_first=True), inputs()
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        model.layers[0].linear1.register_forward_hook(lambda m, i, o: None)
        assert not torch.equal(model(x, src_key_padding_mask=mask), expected)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_fused_kernel_runs(layer: str, folder: Path) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad():
        with watched(model, layer, folder):
            assert fused_calls(lambda: model(x)) == 2
        assert fused_calls(lambda: model(x)) == 2


def test_the_output_of_a_fused_layer_is_captured(folder: Path) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad(), watched(model, "layers.*", folder) as debugger:
        seen = debugger({"outputs": model(x), "meta_info": {"idx": [*range(7)]}}, model)
        assert torch.equal(seen["output/layers.1"]["output"], model.layers[1](model.layers[0](x)))


def test_a_layer_that_is_itself_the_model(folder: Path) -> None:
    model, (x, _) = encoder().layers[0], inputs()
    with torch.no_grad():
        expected = model(x)
        with watched(model, "", folder) as debugger:
            for idx in range(2):
                seen = debugger({"outputs": model(x[:1]), "meta_info": {"idx": idx}}, model)
            assert torch.equal(seen["output"]["output"], expected[:1])
    assert load_debug_outputs(folder).notes(1) == {}


def test_a_forward_that_failed_is_not_mixed_with_the_next(folder: Path) -> None:
    model, (x, _) = encoder().layers[0], inputs()
    with torch.no_grad(), watched(model, "", folder) as debugger:
        with pytest.raises((RuntimeError, AssertionError)):
            model(x[..., :3])
        debugger({"outputs": model(x[:1]), "meta_info": {"idx": 0}}, model)
    assert load_debug_outputs(folder).notes(0) == {"forwards": {"model": 2}}


def test_a_part_that_the_kernel_left_out_says_so_and_is_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad(), watched(model, "layers.1.linear2", folder) as debugger:
        for idx in range(3):
            assert debugger({"outputs": model(x[:1]), "meta_info": {"idx": idx}}, model) == {}
    assert "set_fastpath_enabled(False)" in load_debug_outputs(folder).notes(2)["absent"]["output"]
    assert len([r for r in caplog.records if "fused kernel" in r.getMessage()]) == 1


def test_a_part_is_captured_when_layers_run_in_parts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, (x, _) = encoder().train(), inputs()
    with watched(model, "layers.1.linear2", folder) as debugger:
        seen = debugger({"outputs": model(x), "meta_info": {"idx": [*range(7)]}}, model)
    assert seen["output"]["output"].shape == (7, 33, 64)
    assert not caplog.records


def test_two_debuggers_on_one_layer(folder: Path) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad(), watched(model, "layers.1", folder / "a") as one:
        with watched(model, "layers.1", folder / "b") as other:
            datapoint = {"outputs": model(x), "meta_info": {"idx": [*range(7)]}}
            assert torch.equal(other(datapoint, model)["output"]["output"], datapoint["outputs"])
        assert torch.equal(one(datapoint, model)["output"]["output"], datapoint["outputs"])
    assert model.layers[1]._compiled_call_impl is None


def test_a_copy_carries_no_hook(folder: Path) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad(), watched(model, "layers.1", folder) as debugger:
        copied = copy.deepcopy(model)
        assert copied.layers[1]._compiled_call_impl is None
        copied(x)
        assert debugger({"meta_info": {"idx": [*range(7)]}}, model) == {}


def test_another_model_compiles_without_a_word(folder: Path) -> None:
    """Warnings are errors here: torch warns where hooks for all modules exist."""
    model = encoder()
    with watched(model, "layers.0", folder):
        torch.compile(nn.Linear(3, 3), backend="eager")(torch.ones(1, 3))
