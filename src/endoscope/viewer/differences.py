"""How far two tensors are apart, and a picture of where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.render import attention, colours, images, sheets
from endoscope.render.curves import is_number_list
from endoscope.render.numbers import Array, Numbers, dot, is_numbers
from endoscope.render.pictures import Picture
from endoscope.render.registry import About, View
from endoscope.render.shapes import Maps, maps, matrix
from endoscope.render.sheets import Sheet

MOST = 1 << 24
"""Values of tensors that are compared, or drawn."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two tensors of the same shape, over the places where both are finite; None where there is no such place."""

    mean_abs: float | None
    max_abs: float | None
    relative_l2: float | None
    """The norm of the difference, divided by the mean of both norms: 0 is the same, 2 is opposite."""
    cosine: float | None
    """1 is the same direction, 0 none in common, -1 opposite; None when one of them is all zero, and of one value."""
    compared: int
    of: int


def numbers_of(value: Any) -> Numbers | None:
    """A tensor, a number or a list of them, to be compared; None for everything else, and for what is too large."""
    if is_numbers(value):
        found = Numbers(value)
    elif type(value) is float or (type(value) is int and value.bit_length() <= 1000):
        exact = type(value) is int and value.bit_length() < 64
        found = Numbers(np.array([value], np.int64 if exact else np.float64))
    elif is_number_list(value):
        found = Numbers(np.array(value, np.float64))
    else:
        return None
    return found if 0 < found.size <= MOST else None


def difference(a: Numbers, b: Numbers) -> Difference | None:
    """How far ``a`` is from ``b``; None when their shapes differ. Complex values are apart by the magnitude of their
    difference.

    >>> difference(Numbers(torch.tensor([3.0, 4.0])), Numbers(torch.tensor([3.0, 0.0]))).max_abs
    4.0
    """
    if a.shape != b.shape:
        return None
    biggest = max(_reach(a), _reach(b))
    scale = biggest if biggest > 1e100 else 1.0  # squares would leave the range of doubles
    n, total, largest = 0, 0.0, 0.0
    apart = left = right = both = 0.0
    for p, q in zip(a.chunks(real=False), b.chunks(real=False), strict=True):
        x, y, d = _wide(p), _wide(q), _less(p, q)
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.abs(x)) & np.isfinite(np.abs(y))
        if not finite.all():
            x, y, d = x[finite], y[finite], d[finite]
        if not x.size:
            continue
        if scale != 1.0:
            x, y, d = x / scale, y / scale, _less(x / scale, y / scale)
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


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _less(x: Array, y: Array) -> Array:
    """``x`` less ``y``; of complex values how far they are apart."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = _wide(x) - _wide(y)
        if d.dtype.kind == "c":
            return np.asarray(np.abs(d))
        if x.dtype == y.dtype and x.dtype in (np.int64, np.uint64):  # of large ones a double lacks the last digits
            near = np.abs(d) < 2.0**62
            d[near] = (x[near] - y[near]).view(np.int64)
        return d


def _product(x: Array, y: Array) -> float:
    """The real part of their inner product."""
    return dot(x.real, y.real) + (dot(x.imag, y.imag) if x.dtype.kind == y.dtype.kind == "c" else 0.0)


def differing(a: Numbers, b: Numbers) -> float | None:
    """The share of places at which two maps of classes differ; None when their shapes do."""
    if a.shape != b.shape:
        return None
    pairs = zip(a.chunks(real=False), b.chunks(real=False), strict=True)
    found = sum(int(np.count_nonzero(p != q)) for p, q in pairs)
    return found / a.size


def _reach(x: Numbers) -> float:
    (low, high), _ = sheets.span_of(x)
    return max(abs(low), abs(high))


def has_picture(a: Numbers, b: Numbers) -> bool:
    """Whether `difference_picture` can draw the difference."""
    return a.shape == b.shape and (maps(a) is not None or matrix(a) is not None)


def difference_picture(a: Numbers, b: Numbers, view: View, about: About, drawn: str = "") -> Picture:
    """``a`` less ``b``: blue where it is smaller, white where it is the same, red-brown where it is larger; of classes
    red-brown where they differ.

    ``drawn`` is the form of both by themselves: the difference is laid out as they are. That of an image is the mean
    over its channels.
    """
    if a.shape != b.shape:
        raise ValueError("the two have different shapes")
    if are_classes(drawn):
        d = Numbers((a.take(real=False) != b.take(real=False)).astype(np.float64))
    else:
        d = Numbers(_less(a.take(real=False), b.take(real=False)))
    reach = _reach(d)
    image = images.channels_first(d, about) if drawn == "image" else None
    if image is not None:
        with np.errstate(invalid="ignore"):
            d = Numbers(image.take().mean(0))
    found = maps(d)
    if found is None:
        table = matrix(d)
        if table is None:
            raise ValueError("a difference of this shape has no picture")
        found = Maps(table.reshaped(1, *table.shape), None)
    if drawn == "attention":
        sheet = attention.sheet_of(found)
    else:
        sheet = Sheet.of(found) if found.count > 1 else Sheet.of(found, tile=256, most=1024)
    return sheets.tiles_picture(found, sheet, view, (-reach, reach), colours.DIVERGING)


def are_classes(form: str) -> bool:
    """Whether the numbers of a value drawn in this form are names, of which none is larger than another."""
    return form in ("mask", "tokens")
