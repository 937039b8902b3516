"""Tensors of every kind as dense arrays, with what was converted; and their statistics."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

_NUMPY_LACKS = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_NUMPY_LACKS |= {getattr(torch, n): torch.float32 for n in dir(torch) if n.startswith("float8_")}


def dense(t: torch.Tensor) -> tuple[torch.Tensor, str | None]:
    """A strided tensor of the same values, and the conversion in words."""
    if t.is_quantized:
        return t.dequantize(), f"{short(t.dtype)} dequantized to float32"
    if t.layout is not torch.strided:
        return t.to_dense(), f"{short(t.layout)} made dense"
    return t, None


def as_numpy(t: torch.Tensor) -> tuple[Array, str | None]:
    """The values of a strided tensor as an array, and the conversion in words: numpy has no bfloat16 and no float8."""
    if t.dtype not in _NUMPY_LACKS:
        return t.numpy(), None
    wider = _NUMPY_LACKS[t.dtype]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # complex32 is experimental
        return t.to(wider).numpy(), f"{short(t.dtype)} converted to {short(wider)}"


def short(name: object) -> str:
    """A dtype or layout without ``torch.``."""
    return str(name).removeprefix("torch.")


def describe_array(value: torch.Tensor | Array) -> dict[str, Any]:
    """Shape, dtype, and minimum, mean, maximum of the finite values; ``over`` says which values these are.

    >>> describe_array(torch.tensor([1.0, 2.0, float("nan")]))["mean"]
    1.5
    """
    if isinstance(value, np.ndarray):
        facts = {"type": "array", "dtype": value.dtype.name, "shape": list(value.shape)}
        return {**facts, **_statistics(value, "values")}
    facts = {"type": "tensor", "dtype": short(value.dtype), "shape": list(value.shape)}
    if value.is_quantized:
        return {**facts, **_statistics(value.dequantize().numpy(), "dequantized values")}
    if value.layout is not torch.strided:
        stored = value._values() if value.layout is torch.sparse_coo else value.values()
        facts |= {"layout": short(value.layout), "stored": stored.numel()}
        return {**facts, **_statistics(as_numpy(stored)[0], "stored values")}
    return {**facts, **_statistics(as_numpy(value)[0], "values")}


def _statistics(array: Array, of: str) -> dict[str, Any]:
    if array.dtype.kind == "c":
        array, of = np.abs(array), "magnitudes"
    elif array.dtype.kind == "b":
        array = array.view(np.uint8)
    non_finite = 0
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        non_finite = array.size - int(np.count_nonzero(finite))
        if non_finite:
            array, of = array[finite], f"finite {of}"
    low = mean = high = None
    if array.size:
        low, mean, high = array.min().item(), _mean(array), array.max().item()
    return {"min": low, "mean": mean, "max": high, "non_finite": non_finite, "over": of}


def _mean(array: Array) -> float:
    with np.errstate(over="ignore"):
        mean = float(np.mean(array, dtype=np.float64))
    return mean if np.isfinite(mean) else float(np.sum(array / array.size, dtype=np.float64))  # the sum left the range
