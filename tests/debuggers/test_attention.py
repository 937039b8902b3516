from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from endoscope.debuggers.attention import AttentionDebugger
from endoscope.pages.pickle_pages import one_datapoint


def see(output: Any, module: nn.Module | None = None) -> dict[str, Any]:
    return AttentionDebugger("attn").process_forward(module or nn.Identity(), (), output)


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_keys_and_numbers() -> None:
    w = weights(1, 2, 5, 7)
    seen = see(w)
    assert set(seen) == {"attention_map", "attention_stats", "layer_name"}
    assert seen["attention_map"] is w
    assert seen["layer_name"] == "attn"
    stats = seen["attention_stats"]
    assert set(stats) == {"entropy", "max_attention", "attention_distribution", "sums_to_one", "non_finite"}
    assert stats["entropy"] == pytest.approx(-(w * w.log()).sum(-1).mean().item(), rel=1e-5)
    assert stats["max_attention"] == w.max().item()
    assert torch.equal(stats["attention_distribution"], w.mean(dim=0))
    assert stats["sums_to_one"] is True
    assert stats["non_finite"] == 0


def test_entropy_is_exact_at_its_ends() -> None:
    assert see(torch.eye(4).expand(1, 2, 4, 4))["attention_stats"]["entropy"] == 0.0
    uniform = see(torch.full((1, 2, 4, 4), 0.25))["attention_stats"]["entropy"]
    assert uniform == pytest.approx(math.log(4), rel=1e-6)


def test_a_batch_is_each_of_its_datapoints() -> None:
    w = weights(3, 2, 5, 5)
    w[1] *= 2
    together = see(w)
    for j in range(3):
        alone, mine = see(w[j : j + 1]), one_datapoint(together, j, 3)
        assert torch.equal(mine["attention_map"], alone["attention_map"])
        a, b = alone["attention_stats"], mine["attention_stats"]
        assert torch.equal(a.pop("attention_distribution"), b.pop("attention_distribution"))
        assert b == pytest.approx(a, rel=1e-5)
    assert together["attention_stats"]["sums_to_one"] == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_halves_are_distributions_too(dtype: torch.dtype) -> None:
    stats = see(weights(1, 4, 64, 197).to(dtype))["attention_stats"]
    assert stats["sums_to_one"] is True
    assert stats["entropy"] == pytest.approx(see(weights(1, 4, 64, 197))["attention_stats"]["entropy"], rel=1e-2)


def test_a_bare_tensor_is_taken_as_it_is_and_said_to_be_no_distribution() -> None:
    assert see(torch.randn(1, 2, 3, 3))["attention_stats"]["sums_to_one"] is False
    negative = torch.tensor([[[1.5, -0.5]]])
    assert see(negative)["attention_stats"]["sums_to_one"] is False


def test_one_dimension_is_one_distribution() -> None:
    stats = see(torch.full((4,), 0.25))["attention_stats"]
    assert stats["entropy"] == pytest.approx(math.log(4))
    assert stats["attention_distribution"].tolist() == [0.25] * 4


@pytest.mark.parametrize("average", [True, False])
def test_multihead_attention(average: bool) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    output = layer(x, x, x, average_attn_weights=average)
    seen = see(output, layer)
    assert seen["attention_map"] is output[1]
    assert seen["attention_stats"]["sums_to_one"] == [True] * 3


def test_multihead_attention_with_dropout() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 16, 8)
    output = layer(x, x, x)
    for module in (layer, nn.Identity()):  # known by its type, or by its signs
        seen = see(output, module)
        assert seen["attention_map"] is output[1]
        assert seen["attention_stats"]["sums_to_one"] is False


def test_unbatched_multihead_attention() -> None:
    layer = nn.MultiheadAttention(8, 2)
    x = torch.randn(5, 8)
    stats = see(layer(x, x, x), layer)["attention_stats"]
    assert isinstance(stats["entropy"], float)
    assert stats["attention_distribution"].shape == (5, 5)


def test_weights_among_other_tensors() -> None:
    hidden, keys, w = torch.randn(2, 5, 8), torch.randn(2, 4, 5, 2), weights(2, 4, 5, 5)
    assert see((hidden, (keys, keys), w))["attention_map"] is w
    assert see({"out": hidden, "attentions": (w,)})["attention_map"] is w


def test_absent_weights_say_what_to_do() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    for output in (layer(x, x, x, need_weights=False), (x, None), (x, torch.randn(1, 2, 5, 5))):
        error = see(output, layer if output[1] is None else None)["error"]
        assert "need_weights=True" in error
        assert 'attn_implementation="eager"' in error


def test_hidden_states_of_a_transformer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    config._attn_implementation = "eager"
    model = transformers.BertModel(config).eval()
    seen = {}
    attention = model.encoder.layer[0].attention.self
    attention.register_forward_hook(lambda m, i, o: seen.update(see(o, m)))
    model(torch.arange(6)[None])
    assert seen["attention_map"].shape == (1, 2, 6, 6)
    assert seen["attention_stats"]["sums_to_one"] is True


@pytest.mark.parametrize("output", [None, "text", ()])
def test_no_tensor(output: Any) -> None:
    assert see(output) == {"error": "Output is not a tensor"}


def test_masked_rows_are_counted() -> None:
    w = weights(1, 2, 3, 3)
    w[0, 0, 0] = math.nan
    stats = see(w)["attention_stats"]
    assert (stats["non_finite"], stats["sums_to_one"]) == (3, False)
    assert math.isnan(stats["entropy"])


def test_empty_weights() -> None:
    assert "empty" in see(torch.zeros(0, 2, 3, 3))["error"]
