"""FeatureMapDebugger: a layer's output, copied in its forward hook; its basic statistics are made when it is read."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.forms import of_any_tensor
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.summaries import summaries_made
from endoscope.values import Summary, first_tensor

_STATS = Summary(of="feature_map")


class FeatureMapDebugger(ForwardDebugger):
    """Keep a layer's output and its mean, spread, bounds and number of non-finite values.

    >>> debugger = FeatureMapDebugger("conv")
    >>> sorted(debugger.process_forward(torch.nn.Identity(), (), torch.zeros(1, 8, 4, 4)))
    ['feature_map', 'layer_name', 'stats']

    Of an output with several tensors, the first is the feature map. Every number is one a datapoint.
    """

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        described: dict[str, Any] = summaries_made(self.process_stored(module, input, output))
        return described

    @of_any_tensor
    def process_stored(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        """The numbers are those of the map that is kept: the loop need not wait for them."""
        feature_map = output if type(output) is torch.Tensor else first_tensor(output)
        if feature_map is None:
            return {"error": "Output is not a tensor"}
        return {"feature_map": feature_map, "stats": _STATS, "layer_name": self.layer_name}
