from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from endoscope.debuggers.layer_output import LayerOutputDebugger
from endoscope.errors import ConfigError
from endoscope.pages.pickle_pages import one_datapoint


def see(output: Any, factor: int = 4, module: nn.Module | None = None) -> dict[str, Any]:
    return LayerOutputDebugger("conv", factor).process_forward(module or nn.Identity(), (), output)


def test_keys_and_an_image() -> None:
    x = torch.randn(1, 3, 16, 12)
    seen = see(x)
    assert set(seen) == {
        "layer_name", "original_shape", "output", "downsampled", "downsample_factor", "kernel_size"
    }  # fmt: skip
    assert torch.equal(seen["output"], F.avg_pool2d(x, 4))
    assert seen["layer_name"] == "conv"
    assert seen["original_shape"] == [1, 3, 16, 12]
    assert (seen["downsampled"], seen["downsample_factor"], seen["kernel_size"]) == (True, 4, [4, 4])


def test_the_default_factor_is_four() -> None:
    assert LayerOutputDebugger("conv").downsample_factor == 4
    assert LayerOutputDebugger("conv", calls="all").calls == "all"


def test_volumes_and_sequences() -> None:
    volume, tokens, signal = torch.randn(2, 3, 8, 8, 8), torch.randn(2, 9, 16), torch.randn(2, 16, 9)
    assert torch.equal(see(volume, 2)["output"], F.avg_pool3d(volume, 2))
    assert torch.allclose(see(tokens, 3)["output"], tokens.view(2, 3, 3, 16).mean(2), atol=1e-6)
    by_conv = see(signal, 3, nn.Conv1d(16, 16, 1))
    assert torch.allclose(by_conv["output"], signal.view(2, 16, 3, 3).mean(3), atol=1e-6)


def test_channels_are_never_mixed() -> None:
    tokens = torch.zeros(1, 8, 16)
    tokens[..., 5] = 1
    kept = see(tokens)["output"]
    assert kept.shape == (1, 2, 16)
    assert kept[..., 5].eq(1).all()
    assert kept.sum() == 2


@pytest.mark.parametrize("shape", [(), (3,), (2, 16), (2, 16, 0, 4), (2, 3, 1, 1), (2, 3, 2, 2, 2, 2)])
def test_nothing_to_average(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    seen = see(x)
    assert seen["output"] is x
    assert (seen["downsampled"], seen["kernel_size"]) == (False, [])


def test_factor_one_keeps_everything() -> None:
    x = torch.randn(1, 3, 4, 4)
    assert see(x, 1)["output"] is x
    assert see(x, 1)["downsampled"] is False


def test_the_factor_is_clamped_to_the_size() -> None:
    x = torch.randn(1, 3, 2, 8)
    seen = see(x, 4)
    assert torch.allclose(seen["output"], x.view(1, 3, 2, 2, 4).mean((2, 4))[:, :, None], atol=1e-6)
    assert seen["kernel_size"] == [2, 4]


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.uint8, torch.float32),
        (torch.bool, torch.float32),
        (torch.complex64, torch.complex64),
    ],
)
def test_types(dtype: torch.dtype, kept: torch.dtype) -> None:
    x = (torch.arange(64).view(1, 4, 4, 4) % 2).to(dtype)
    seen = see(x)["output"]
    assert seen.dtype is kept
    assert torch.equal(seen, torch.full((1, 4, 1, 1), 0.5, dtype=kept))


def test_halves_are_averaged_in_float32() -> None:
    x = torch.full((1, 1, 64, 64), 60000.0, dtype=torch.float16)
    assert see(x, 64)["output"].item() == 60000.0


@pytest.mark.parametrize("factor", [0, -1, 2.0, "2", None, True])
def test_an_impossible_factor_is_refused_at_construction(factor: Any) -> None:
    with pytest.raises(ConfigError, match="downsample_factor is"):
        LayerOutputDebugger("conv", factor)


@pytest.mark.parametrize("shape", [(4, 8), (4, 9, 8), (4, 3, 8, 8)])
def test_a_batch_is_each_of_its_datapoints(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    together = see(x)
    for j in range(4):
        alone, mine = see(x[j : j + 1]), one_datapoint(together, j, 4)
        assert torch.allclose(mine.pop("output"), alone.pop("output"))
        assert mine == alone


def test_first_tensor_or_an_error() -> None:
    assert see((torch.ones(1, 1, 4, 4), None))["output"].shape == (1, 1, 1, 1)
    assert see(None) == {"error": "Output is not a tensor"}
