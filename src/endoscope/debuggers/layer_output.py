"""LayerOutputDebugger: a layer's output, averaged down to a smaller size. Runs in the layer's forward hook."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.errors import ConfigError
from endoscope.statistics import channel_dim, datapoint_shape
from endoscope.values import first_tensor

_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class LayerOutputDebugger(ForwardDebugger):
    """Store a layer's output, averaged over blocks of ``downsample_factor`` in each spatial dimension.

    >>> debugger = LayerOutputDebugger("conv", downsample_factor=2)
    >>> result = debugger.process_forward(torch.nn.Identity(), (), torch.zeros(1, 8, 6, 6))
    >>> tuple(result["output"].shape), result["downsampled"]
    ((1, 8, 3, 3), True)

    Images and volumes shrink in height, width and depth, sequences in length. Channels are never mixed, and outputs
    without a spatial dimension are stored as they are. A factor larger than a dimension averages all of that dimension;
    ``kernel_size`` is the block that was used. Rows beyond the last full block are left out. ``downsampled`` is
    whether ``output`` differs from the layer's output. Averages of integers are float32.
    """

    uses_random = False

    def __init__(self, layer_name: str, downsample_factor: int = 4, *, calls: Literal["last", "all"] = "last") -> None:
        super().__init__(layer_name, calls=calls)
        if not isinstance(downsample_factor, int) or isinstance(downsample_factor, bool) or downsample_factor < 1:
            raise ConfigError(f"downsample_factor is {downsample_factor!r}; it must be a whole number of at least 1")
        self.downsample_factor = downsample_factor

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> dict[str, Any]:
        tensor = first_tensor(output)
        if tensor is None:
            return {"error": "Output is not a tensor"}
        averaged, kernel = self._downsample(module, tensor)
        return {
            "layer_name": self.layer_name,
            "original_shape": datapoint_shape(tensor),
            "output": averaged,
            "downsampled": bool(kernel),
            "downsample_factor": self.downsample_factor,
            "kernel_size": kernel,
        }

    def _downsample(self, module: torch.nn.Module, x: Tensor) -> tuple[Tensor, list[int]]:
        """The averaged tensor, and the block that it was averaged over: empty if it was not averaged."""
        dim = channel_dim(module, x)
        if dim is None or x.ndim > 5 or x.numel() == 0:
            return x, []
        first = x.movedim(dim, 1)
        kernel = [min(self.downsample_factor, size) for size in first.shape[2:]]
        if max(kernel) == 1:
            return x, []
        if x.is_complex():
            pooled = torch.complex(_average(first.real, kernel), _average(first.imag, kernel))
        else:
            pooled = _average(first, kernel)
        if x.dtype in (torch.bfloat16, torch.float16):
            pooled = pooled.to(x.dtype)
        return pooled.movedim(1, dim), kernel


def _average(x: Tensor, kernel: list[int]) -> Tensor:
    if x.is_quantized:
        x = x.dequantize()
    elif x.dtype is not torch.float64:
        x = x.float()
    pooled: Tensor = _POOL[len(kernel)](x, kernel)
    return pooled
