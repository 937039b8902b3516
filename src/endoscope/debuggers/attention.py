"""AttentionDebugger: attention weights, with how concentrated they are. Runs in the layer's forward hook."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.statistics import summarize
from endoscope.values import per_datapoint, tensors_in

_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 2e-2}

_NO_WEIGHTS = (
    "The output holds no attention weights; call nn.MultiheadAttention with need_weights=True, "
    'load a transformers model with attn_implementation="eager", or name the layer that returns the weights'
)


class AttentionDebugger(ForwardDebugger):
    """Keep attention weights: those that a layer returns by themselves, or beside its output.

    >>> debugger = AttentionDebugger("attn")
    >>> seen = debugger.process_forward(torch.nn.Identity(), (), torch.full((1, 2, 4, 4), 0.25))
    >>> round(seen["attention_stats"]["entropy"], 4), seen["attention_stats"]["max_attention"]
    (1.3863, 0.25)

    ``entropy`` is in nats, the mean over heads and queries: 0 looks at one key, ln(number of keys) at all alike.
    ``sums_to_one`` is False where the rows are no distribution: dropout was active, a row is masked, or the layer's
    output is something else. Every number is one a datapoint, and ``attention_distribution`` that datapoint's weights.
    """

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        attention = _weights(module, output)
        if attention is None:
            found = next(tensors_in(output), None)
            return {"error": "Output is not a tensor" if found is None else _NO_WEIGHTS}
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
    if isinstance(output, Tensor):
        return None if output.is_complex() or output.ndim == 0 else output
    if isinstance(module, torch.nn.MultiheadAttention) and isinstance(output, tuple) and len(output) == 2:
        result, weights = output
        if not isinstance(weights, Tensor):
            return None
        unbatched = isinstance(result, Tensor) and result.ndim == 2
        return weights[None] if unbatched else weights
    candidates = [t for t in list(tensors_in(output))[1:] if t.ndim >= 3 and t.is_floating_point() and t.numel()]
    for candidate in candidates:
        if all(_sums_to_one(candidate)):
            return candidate
    # With dropout the rows do not add up; keys, values and hidden states still differ from weights by their signs.
    for candidate in candidates:
        if not (candidate < 0).any():
            return candidate
    return None


def _real(x: Tensor) -> Tensor:
    return x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()


def _sums_to_one(rows: Tensor) -> list[bool]:
    """For each datapoint, whether all its rows are distributions."""
    values = _real(rows)
    close = ((values.sum(-1) - 1).abs() <= _TOLERANCE.get(rows.dtype, 1e-3)) & (values.amin(-1) >= 0)
    whole: list[bool] = close.reshape(len(rows), -1).all(1).tolist()
    return whole
