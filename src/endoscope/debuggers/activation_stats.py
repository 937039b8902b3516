"""ActivationStatsDebugger: statistics of a layer's output. Runs in the layer's forward hook."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.statistics import (
    as_rows,
    channel_dim,
    channel_statistics,
    datapoint_shape,
    first_values,
    fractions,
    l1_norm,
    l2_norm,
    summarize,
)
from endoscope.values import first_tensor, per_datapoint

SAMPLE_VALUES = 100
"""How many values of each datapoint are stored for inspection."""


class ActivationStatsDebugger(ForwardDebugger):
    """Measure a layer's output without storing it: distribution, norms, sparsity, saturation, channels.

    >>> debugger = ActivationStatsDebugger("relu")
    >>> result = debugger.process_forward(torch.nn.ReLU(), (), torch.tensor([[0.0, 0.0, 2.0, 1.0]]))
    >>> result["activation_stats"]["sparsity"], result["activation_stats"]["saturation_high"]
    (0.5, 0.5)

    ``l1_norm`` is the mean magnitude, ``l2_norm`` the Euclidean norm; ``saturation_low`` and ``saturation_high`` are
    the shares of values <= -1 and >= 1. An output with three dimensions or more also has ``channel_means`` and
    ``channel_stds`` along ``channel_dim``. There is one number per datapoint. Complex values count by their magnitude.
    """

    uses_random = False

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        activation = first_tensor(output)
        if activation is None:
            return {"error": "Output is not a tensor"}
        rows = as_rows(activation)
        numbers = {
            **summarize(rows),
            "l1_norm": l1_norm(rows),
            "l2_norm": l2_norm(rows),
            **fractions(
                rows,
                sparsity=("eq", 0.0),
                positive_ratio=("gt", 0.0),
                saturation_low=("le", -1.0),
                saturation_high=("ge", 1.0),
            ),
        }
        stats: dict[str, Any] = {"shape": datapoint_shape(activation)}
        stats.update((name, per_datapoint(values)) for name, values in numbers.items())
        dim = channel_dim(module, activation)
        if dim is not None and activation.numel():
            means, stds = channel_statistics(activation, dim)
            stats.update(channel_dim=dim, channel_means=per_datapoint(means), channel_stds=per_datapoint(stds))
        return {
            "layer_name": self.layer_name,
            "module_type": type(module).__name__,
            "activation_stats": stats,
            "sample_values": per_datapoint(first_values(activation, SAMPLE_VALUES)),
        }
