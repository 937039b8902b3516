"""Every private torch symbol that Endoscope uses, each with a fallback or a clear error at use, never at import.

No other module names a ``torch._...`` symbol. When a torch release removes one, this is the file to change.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch import compiler

from endoscope.errors import EndoscopeError


class TorchSymbolMissing(EndoscopeError, RuntimeError):
    """This torch lacks a private symbol that a feature needs."""


def _symbol(path: str, default: Any = None) -> Any:
    """``torch.<path>``, or the default if this torch does not have it."""
    value: Any = torch
    for name in path.split("."):
        value = getattr(value, name, None)
        if value is None:
            return default
    return value


def _required(path: str, feature: str) -> Any:
    """``torch.<path>``, or an error that names the feature that needs it."""
    value = _symbol(path)
    if value is None:
        raise TorchSymbolMissing(
            f"{feature} needs torch.{path}, which torch {torch.__version__} does not have; "
            "install a torch release that Endoscope supports (see pyproject.toml)"
        )
    return value


def _no(*_: Any) -> bool:
    return False


# ---------------------------------------------------------------- what torch is doing on this thread
_graph_task = _symbol("_C._current_graph_task_id", lambda: -1)
_dispatch_modes = _symbol("_C._len_torch_dispatch_stack", lambda: 1)


def in_backward() -> bool:
    """Whether autograd runs a backward pass on this thread. Without the symbol, layers that activation checkpointing
    computes again are captured twice."""
    return bool(_graph_task() != -1)


def is_traced() -> bool:
    """Whether this forward computes nothing, because the model is being compiled, exported or traced."""
    return bool(
        compiler.is_dynamo_compiling()  # first: dynamo stops here, and traces none of the others
        or (compiler.is_compiling() and _dispatch_modes() > 0)  # the flag is shared by all threads, the modes are not
        or _symbol("fx._symbolic_trace._is_fx_tracing_flag", False)
        or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def optimized_module() -> Any:
    """The class of what ``torch.compile(module)`` returns; None while this process has compiled nothing."""
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)


# ---------------------------------------------------------------- torch.func
_transform = _symbol("_C._functorch.peek_interpreter_stack", lambda: None)
_is_wrapped = _symbol("_C._functorch.is_functorch_wrapped_tensor", _no)
_is_batched = _symbol("_C._functorch.is_batchedtensor", _no)
_is_functional = _symbol("_is_functional_tensor", _no)


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """Inside this block no transform of `torch.func` (grad, vmap, ...) applies to what is computed."""
    if _transform() is None:
        return contextlib.nullcontext()
    path = "_functorch.pyfunctorch.temporarily_clear_interpreter_stack"
    context: contextlib.AbstractContextManager[Any] = _required(path, "capturing inside a torch.func transform")()
    return context


def innermost(t: torch.Tensor) -> torch.Tensor:
    """The tensor that `torch.func` has wrapped. A tensor inside vmap has the slices in its first dimension."""
    while True:
        if _is_functional(t):
            _required("_sync", "capturing a functional tensor")(t)  # its memory is stale until then
            t = _required("_from_functional_tensor", "capturing a functional tensor")(t)
        elif _is_batched(t):
            dimension = _required("_C._functorch.maybe_get_bdim", "capturing inside torch.func.vmap")(t)
            t = _required("_C._functorch.get_unwrapped", "capturing inside torch.func.vmap")(t).movedim(dimension, 0)
        elif _is_wrapped(t):
            t = _required("_C._functorch.get_unwrapped", "capturing inside torch.func")(t)
        else:
            return t


# ---------------------------------------------------------------- layouts and quantised tensors
def is_mkldnn(t: torch.Tensor) -> bool:
    """Whether a tensor has the opaque layout of oneDNN."""
    return t.layout is not torch.strided and t.layout is _symbol("_mkldnn")


def empty_per_tensor_quantized(shape: Any, *, scale: float, zero_point: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised quantised tensor with one scale."""
    make = _required("_empty_affine_quantized", "reading a quantised tensor")
    tensor: torch.Tensor = make(shape, scale=scale, zero_point=zero_point, dtype=dtype)
    return tensor


def empty_per_channel_quantized(
    shape: Any, *, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """An uninitialised quantised tensor with a scale for each index of ``axis``."""
    make = _required("_empty_per_channel_affine_quantized", "reading a quantised tensor")
    tensor: torch.Tensor = make(shape, scales=scales, zero_points=zero_points, axis=axis, dtype=dtype)
    return tensor
