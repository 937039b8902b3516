"""nn.TransformerEncoder in evaluation runs as one fused kernel, which torch gives up when hooks are on its parts.

The fused kernel gives other bits than the parts do. Without it nothing changes; with it the user is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from endoscope import SequentialDebugger

from .conftest import Output, node

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
def watched(model: nn.Module, layer: str, folder: Path) -> Iterator[None]:
    debugger = SequentialDebugger([node("output", Output, layer_name=layer)], model, output_dir=folder)
    debugger.enabled = True
    yield
    debugger.close()


def fused_calls(run: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return sum(e.count for e in seen.key_averages() if e.key == "aten::_transformer_encoder_layer_fwd")


@pytest.fixture
def without_fast_path() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("without_fast_path")
@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_bits(layer: str, mode: Any, norm_first: bool, folder: Path) -> None:
    model, (x, mask) = encoder(norm_first=norm_first), inputs()
    with mode():
        expected = model(x, src_key_padding_mask=mask)
        with watched(model, layer, folder):
            found = model(x, src_key_padding_mask=mask)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layer", ["*", "layers.0", "layers.1.linear2"])
def test_the_user_is_told_once(layer: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad():
        assert fused_calls(lambda: model(x)) == 2
        with watched(model, layer, folder):
            assert fused_calls(lambda: model(x)) < 2  # torch's own choice, which no hook can change
    told = [r.getMessage() for r in caplog.records if "fused kernel" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.usefixtures("without_fast_path")
def test_twin_nothing_is_told_where_nothing_changes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with watched(encoder(), "*", folder):
        pass
    assert not caplog.records


def test_the_fused_kernel_is_back_afterwards(folder: Path) -> None:
    model, (x, _) = encoder(), inputs()
    with torch.no_grad():
        with watched(model, "*", folder):
            pass
        assert fused_calls(lambda: model(x)) == 2
