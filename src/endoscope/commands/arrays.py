"""Tensors of every kind as dense arrays, with what was converted; and their statistics."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from endoscope.render.numbers import overall
from endoscope.render.plain import jsonable

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
    """Shape, dtype and the numbers of all values; ``over`` says which values these are.

    >>> describe_array(torch.tensor([1.0, 2.0, float("nan")]))["nan"]
    1

    The numbers of a sparse tensor are over its stored values. Non-finite numbers are text, which JSON can hold.
    """
    if isinstance(value, np.ndarray):
        facts = {"type": "array", "dtype": value.dtype.name, "shape": list(value.shape)}
        return {**facts, **_numbers(value, "magnitudes" if value.dtype.kind == "c" else "values")}
    facts = {"type": "tensor", "dtype": short(value.dtype), "shape": list(value.shape)}
    if value.is_quantized:
        return {**facts, **_numbers(value, "dequantized values")}
    over = "values"
    if value.layout is not torch.strided:
        facts["layout"], over = short(value.layout), "stored values"
        value = value._values() if value.layout is torch.sparse_coo else value.values()
        facts["stored"] = value.numel()
    return {**facts, **_numbers(value, "magnitudes" if value.is_complex() else over)}


def _numbers(values: torch.Tensor | Array, over: str) -> dict[str, Any]:
    numbers = overall(values)
    ends = {name: jsonable(numbers[name]) for name in ("min", "mean", "max")}
    return {**ends, **{name: numbers[name] for name in ("nan", "inf", "non_finite")}, "over": over}
