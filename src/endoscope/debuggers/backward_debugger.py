"""BackwardDebugger: a debugger that sees the gradient of one layer's output."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from endoscope.debuggers.base_debugger import BaseDebugger, Calls, checked_calls


class BackwardDebugger(BaseDebugger):
    """Look at the gradient that reaches a layer's output.

    >>> class GradNorm(BackwardDebugger):
    ...     def process_backward(self, module, grad_output):
    ...         return {"norm": float(grad_output.norm())}

    Call the `SequentialDebugger` after ``loss.backward()``. Gradients are as autograd computes them: under a
    ``GradScaler`` they are still multiplied by its scale, and they are not clipped yet. An in-place operation after the
    layer does no harm, because the hooks are on the output tensors.
    """

    calls: Calls = "last"

    def __init__(self, layer_name: str, *, calls: Calls = "last") -> None:
        self.layer_name = layer_name
        self.calls = checked_calls(calls)

    @abstractmethod
    def process_backward(self, module: torch.nn.Module, grad_output: Any) -> Any:
        """Return what to store. ``grad_output`` has the structure of the layer's output, with None for tensors that
        received no gradient."""

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        """Nothing: only `SequentialDebugger` sets the hooks that call `process_backward`."""
        return None
