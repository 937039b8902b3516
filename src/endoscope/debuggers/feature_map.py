"""FeatureMapDebugger: a layer's output, copied in its forward hook. Its statistics are computed when they are read."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.summaries import with_summaries
from endoscope.values import Summary, first_tensor


class FeatureMapDebugger(ForwardDebugger):
    """Store a layer's output with its mean, standard deviation, minimum, maximum and number of non-finite values.

    >>> debugger = FeatureMapDebugger("conv")
    >>> sorted(debugger.process_forward(torch.nn.Identity(), (), torch.zeros(1, 8, 4, 4)))
    ['feature_map', 'layer_name', 'stats']

    Of an output with several tensors, the first is stored. There is one number per datapoint.
    """

    uses_random = False
    keeps_output = "feature_map"

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        stored = output_with_summary("feature_map", self.layer_name, module, input, output)
        computed: dict[str, Any] = with_summaries(stored)
        return computed


def output_with_summary(key: str, layer_name: str, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
    """What is stored for a debugger that declares ``keeps_output = key``."""
    tensor = first_tensor(output)
    if tensor is None:
        return {"error": "Output is not a tensor"}
    return {key: tensor, "stats": Summary(of=key), "layer_name": layer_name}
