"""How far two tensors are apart, and a picture of their difference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.render import attention, colours, images, sheets
from endoscope.render.curves import is_number_list
from endoscope.render.numbers import Array, Numbers, dot, is_numbers
from endoscope.render.pictures import Picture
from endoscope.render.renderer import About, View
from endoscope.render.shapes import Maps, maps, matrix
from endoscope.render.sheets import Sheet

MAX_SIZE = 1 << 24
"""Elements of a tensor that is compared or drawn."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two tensors of the same shape, over the places where both are finite; None where there is no such place."""

    mean_abs: float | None
    max_abs: float | None
    relative_l2: float | None
    """The norm of the difference divided by the mean of both norms: 0 for equal, 2 for opposite tensors."""
    cosine: float | None
    """1 for the same direction, 0 for orthogonal, -1 for opposite; None for a zero tensor or a single value."""
    compared: int
    of: int


def comparable(value: Any) -> Numbers | None:
    """A tensor, a number or a list of numbers; None for anything else, and for values that are too large."""
    if is_numbers(value):
        numbers = Numbers(value)
    elif type(value) is float or (type(value) is int and value.bit_length() <= 1000):
        exact = type(value) is int and value.bit_length() < 64
        numbers = Numbers(np.array([value], np.int64 if exact else np.float64))
    elif is_number_list(value):
        numbers = Numbers(np.array(value, np.float64))
    else:
        return None
    return numbers if 0 < numbers.size <= MAX_SIZE else None


def difference(a: Numbers, b: Numbers) -> Difference | None:
    """How far ``a`` is from ``b``; None for different shapes. Complex values count by magnitude.

    >>> difference(Numbers(torch.tensor([3.0, 4.0])), Numbers(torch.tensor([3.0, 0.0]))).max_abs
    4.0
    """
    if a.shape != b.shape:
        return None
    biggest = max(_max_abs(a), _max_abs(b))
    scale = biggest if biggest > 1e100 else 1.0  # squares would overflow
    n, total, largest = 0, 0.0, 0.0
    apart = left = right = both = 0.0
    for x, y, d in _finite_chunks(a, b, scale):
        n += x.size
        total += float(np.abs(d).sum())
        largest = max(largest, float(np.abs(d).max()))
        apart, left, right = apart + dot(d, d), left + _product(x, x), right + _product(y, y)
        both += _product(x, y)
    if not n:
        return Difference(None, None, None, None, 0, a.size)
    norms = math.sqrt(left), math.sqrt(right)
    relative = 0.0 if sum(norms) == 0 else math.sqrt(apart) / (sum(norms) / 2)
    cosine = None if min(norms) == 0 or a.size == 1 else max(-1.0, min(1.0, both / (norms[0] * norms[1])))
    return Difference(total / n * scale, largest * scale, relative, cosine, n, a.size)


def _finite_chunks(a: Numbers, b: Numbers, scale: float) -> Iterator[tuple[Array, Array, Array]]:
    """Both and their difference, divided by ``scale``, at the places where both are finite."""
    for p, q in zip(a.chunks(real=False), b.chunks(real=False), strict=True):
        x, y, d = _wide(p), _wide(q), _subtract(p, q)
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.abs(x)) & np.isfinite(np.abs(y))
        if not finite.all():
            x, y, d = x[finite], y[finite], d[finite]
        if not x.size:
            continue
        yield (x, y, d) if scale == 1.0 else (x / scale, y / scale, _subtract(x / scale, y / scale))


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _subtract(x: Array, y: Array) -> Array:
    """``x - y``; for complex values its magnitude."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = _wide(x) - _wide(y)
        if d.dtype.kind == "c":
            return np.asarray(np.abs(d))
        if x.dtype == y.dtype and x.dtype in (np.int64, np.uint64):  # a double lacks the last digits of large integers
            near = np.abs(d) < 2.0**62
            d[near] = (x[near] - y[near]).view(np.int64)
        return d


def _product(x: Array, y: Array) -> float:
    """The real part of the inner product."""
    return dot(x.real, y.real) + (dot(x.imag, y.imag) if x.dtype.kind == y.dtype.kind == "c" else 0.0)


def differing(a: Numbers, b: Numbers) -> float | None:
    """The share of places where two maps of classes differ; None for different shapes."""
    if a.shape != b.shape:
        return None
    pairs = zip(a.chunks(real=False), b.chunks(real=False), strict=True)
    return sum(int(np.count_nonzero(p != q)) for p, q in pairs) / a.size


def _max_abs(x: Numbers) -> float:
    (low, high), _ = sheets.span_of(x)
    return max(abs(low), abs(high))


def has_picture(a: Numbers, b: Numbers) -> bool:
    """Whether `difference_picture` can draw the difference."""
    return a.shape == b.shape and (maps(a) is not None or matrix(a) is not None)


def difference_picture(a: Numbers, b: Numbers, view: View, about: About, form: str = "") -> Picture:
    """``a - b``: blue where it is negative, white where it is zero, red-brown where it is positive. Classes that differ
    are red-brown.

    The difference is laid out like ``form``, the renderer of both. For an image it is the mean over the channels.
    """
    if a.shape != b.shape:
        raise ValueError("the two have different shapes")
    if are_classes(form):
        d = Numbers((a.take(real=False) != b.take(real=False)).astype(np.float64))
    else:
        d = Numbers(_subtract(a.take(real=False), b.take(real=False)))
    max_abs = _max_abs(d)
    image = images.channels_first(d, about) if form == "image" else None
    if image is not None:
        with np.errstate(invalid="ignore"):
            d = Numbers(image.take().mean(0))
    drawn = maps(d)
    if drawn is None:
        table = matrix(d)
        if table is None:
            raise ValueError("a difference of this shape cannot be drawn")
        drawn = Maps(table.reshaped(1, *table.shape), None)
    if form == "attention":
        sheet = attention.sheet_of(drawn)
    else:
        sheet = Sheet.of(drawn) if drawn.count > 1 else Sheet.of(drawn, tile=256, most=1024)
    return sheets.tiles_picture(drawn, sheet, view, (-max_abs, max_abs), colours.DIVERGING)


def are_classes(form: str) -> bool:
    """Whether the numbers of a value with this renderer are names of classes, which have no order."""
    return form in ("mask", "tokens")
