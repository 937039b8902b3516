"""AttentionDebugger: attention weights and how concentrated they are. Runs in the layer's forward hook."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.statistics import summarize
from endoscope.values import first_tensor, per_datapoint, tensors_in

_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 2e-2}

_NO_WEIGHTS = (
    "The output holds no attention weights; call nn.MultiheadAttention with need_weights=True, "
    'load a transformers model with attn_implementation="eager", or name the layer that returns the weights'
)


class AttentionDebugger(ForwardDebugger):
    """Store attention weights that a layer returns, alone or beside its output.

    >>> debugger = AttentionDebugger("attn")
    >>> result = debugger.process_forward(torch.nn.Identity(), (), torch.full((1, 2, 4, 4), 0.25))
    >>> round(result["attention_stats"]["entropy"], 4), result["attention_stats"]["max_attention"]
    (1.3863, 0.25)

    ``entropy`` is in nats, the mean over heads and queries: 0 means attention to one key, ln(number of keys) equal
    attention to all. ``sums_to_one`` is False where the rows are not distributions: dropout was active, a row is
    masked, or the layer's output is something else. There is one number per datapoint, and ``attention_distribution``
    holds the weights of each datapoint.
    """

    uses_random = False

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        attention = _weights(module, output)
        if attention is None:
            return {"error": "Output is not a tensor" if first_tensor(output) is None else _NO_WEIGHTS}
        if attention.numel() == 0:
            return {"error": f"The attention weights are empty, of shape {list(attention.shape)}"}
        rows = attention if attention.ndim > 1 else attention[None]
        values = _real(rows)
        entropy = 0 - torch.special.xlogy(values, values).sum(-1).reshape(len(rows), -1).mean(1)
        summary = summarize(rows)
        stats = {
            "entropy": per_datapoint(entropy.tolist()),
            "max_attention": per_datapoint(summary["max"]),
            "attention_distribution": per_datapoint(rows.unbind()),
            "sums_to_one": per_datapoint(_sums_to_one(rows)),
            "non_finite": per_datapoint(summary["non_finite"]),
        }
        return {"attention_map": attention, "attention_stats": stats, "layer_name": self.layer_name}


def _weights(module: torch.nn.Module, output: Any) -> Tensor | None:
    """The attention weights in a layer's output, if there are any."""
    if isinstance(output, Tensor):
        return None if output.is_complex() or output.ndim == 0 else output
    if isinstance(module, torch.nn.MultiheadAttention) and isinstance(output, tuple) and len(output) == 2:
        return _of_multihead_attention(*output)
    return _most_likely(list(tensors_in(output))[1:])


def _most_likely(tensors: list[Tensor]) -> Tensor | None:
    """The first tensor whose rows are distributions, else the first without negative values."""
    candidates = [t for t in tensors if t.ndim >= 3 and t.is_floating_point() and t.numel() > 0]
    distributions = (t for t in candidates if all(_sums_to_one(t)))
    # With dropout the rows do not add up, but only weights have no negative values: keys and hidden states do.
    without_negatives = (t for t in candidates if not (t < 0).any())
    return next(itertools.chain(distributions, without_negatives), None)


def _of_multihead_attention(result: Any, weights: Any) -> Tensor | None:
    if not isinstance(weights, Tensor):
        return None
    unbatched = isinstance(result, Tensor) and result.ndim == 2
    return weights[None] if unbatched else weights


def _real(x: Tensor) -> Tensor:
    return x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()


def _sums_to_one(rows: Tensor) -> list[bool]:
    """For each datapoint, whether all its rows are distributions."""
    values = _real(rows)
    close = ((values.sum(-1) - 1).abs() <= _TOLERANCE.get(rows.dtype, 1e-3)) & (values.amin(-1) >= 0)
    by_datapoint: list[bool] = close.reshape(len(rows), -1).all(1).tolist()
    return by_datapoint
