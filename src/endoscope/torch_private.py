"""Every private torch symbol that Endoscope uses, each with a fallback or a clear error at use, never at import.

No other module names a `torch._...` symbol. When a new torch release removes one, this file is the one to change.
"""

from __future__ import annotations

from typing import Any

import torch

from endoscope.errors import EndoscopeError


class TorchSymbolMissing(EndoscopeError, RuntimeError):
    """This torch lacks a private symbol that a feature needs."""


def _missing(feature: str, symbol: str) -> TorchSymbolMissing:
    return TorchSymbolMissing(
        f"{feature} needs torch.{symbol}, which torch {torch.__version__} does not have; "
        "install a torch release that Endoscope was tried with (see pyproject.toml)"
    )


# ---------------------------------------------------------------- quantised tensors
def empty_per_tensor_quantized(shape: Any, *, scale: float, zero_point: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised quantised tensor with one scale."""
    make = getattr(torch, "_empty_affine_quantized", None)
    if make is None:
        raise _missing("reading a quantised tensor", "_empty_affine_quantized")
    tensor: torch.Tensor = make(shape, scale=scale, zero_point=zero_point, dtype=dtype)
    return tensor


def empty_per_channel_quantized(
    shape: Any, *, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """An uninitialised quantised tensor with a scale for each index of ``axis``."""
    make = getattr(torch, "_empty_per_channel_affine_quantized", None)
    if make is None:
        raise _missing("reading a quantised tensor", "_empty_per_channel_affine_quantized")
    tensor: torch.Tensor = make(shape, scales=scales, zero_points=zero_points, axis=axis, dtype=dtype)
    return tensor


# ---------------------------------------------------------------- autograd
def in_backward() -> bool:
    """Whether this thread runs a backward pass, in which activation checkpointing computes layers again.

    Without the symbol such a second computation is taken for another call.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1
