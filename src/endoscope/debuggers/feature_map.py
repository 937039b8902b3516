"""FeatureMapDebugger: a layer's output, copied in its forward hook, with basic statistics made on the writer thread."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.statistics import datapoint_shape, summarize
from endoscope.tensors import first_tensor
from endoscope.values import Later, per_datapoint


class FeatureMapDebugger(ForwardDebugger):
    """Keep a layer's output and its mean, spread, bounds and number of non-finite values.

    >>> debugger = FeatureMapDebugger("conv")
    >>> sorted(debugger.process_forward(torch.nn.Identity(), (), torch.zeros(1, 8, 4, 4)))
    ['feature_map', 'layer_name', 'stats']

    Of an output with several tensors, the first is the feature map. Every number is one a datapoint.
    """

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        feature_map = first_tensor(output)
        return {"error": "Output is not a tensor"} if feature_map is None else self._described(feature_map)

    def process_later(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        """In the hook only the copy; the numbers come from the copy on the writer thread, where the loop does not wait
        for them (and on CUDA nothing is synchronised)."""
        feature_map = first_tensor(output)
        return {"error": "Output is not a tensor"} if feature_map is None else Later(feature_map, self._described)

    def _described(self, feature_map: torch.Tensor) -> dict[str, Any]:
        stats: dict[str, Any] = {name: per_datapoint(values) for name, values in summarize(feature_map).items()}
        stats["shape"] = datapoint_shape(feature_map)
        return {"feature_map": feature_map, "stats": stats, "layer_name": self.layer_name}
