"""GradientStatsDebugger: statistics of the gradient of a layer's output. Runs in the backward pass."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.statistics import as_rows, datapoint_shape, fraction_zero, l2_norm, summarize
from endoscope.values import first_tensor, per_datapoint


class GradientStatsDebugger(BackwardDebugger):
    """Measure the gradient that reaches a layer's output: distribution, norm, zeros, non-finite values.

    >>> debugger = GradientStatsDebugger("fc")
    >>> result = debugger.process_backward(torch.nn.Identity(), torch.tensor([[3.0, 4.0]]))
    >>> result["gradient_stats"]["l2_norm"]
    5.0

    There is one number per datapoint. If the loss is the mean over the batch, each datapoint's gradient is divided by
    the batch size.
    """

    uses_random = False

    def process_backward(self, module: torch.nn.Module, grad_output: Any) -> dict[str, Any]:
        gradient = first_tensor(grad_output)
        if gradient is None:
            return {"error": "No gradient reached the output"}
        rows = as_rows(gradient)
        numbers = {**summarize(rows), "l2_norm": l2_norm(rows), "fraction_zero": fraction_zero(rows)}
        stats: dict[str, Any] = {name: per_datapoint(values) for name, values in numbers.items()}
        stats["shape"] = datapoint_shape(gradient)
        return {"layer_name": self.layer_name, "gradient_stats": stats}
