"""Numbers: the values of a tensor or array of any kind, in parts, as plain real arrays; and their statistics.

A large tensor is never converted at once: parts are taken first and converted then, which needs no memory for a copy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.statistics import finish, reduce

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 16  # small enough to stay near the processor
STATISTICS_OF = 1 << 27
"""Statistics cover at most so many values; `Stats.over` says so."""
_DENSE = 1 << 26  # elements of a sparse tensor that is made dense
_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_WIDER |= {getattr(torch, name): torch.float32 for name in dir(torch) if name.startswith("float8_")}


def is_numbers(value: Any) -> bool:
    """Whether a value is a tensor, or an array of numbers."""
    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")


def numbers_of(value: Any) -> Numbers | None:
    """The values of a tensor or array; None for any other value, and for a tensor whose values cannot be read."""
    try:
        return Numbers(value) if is_numbers(value) else None
    except (RuntimeError, TypeError, ValueError):  # such as a nested tensor
        return None


class Numbers:
    """One tensor or array.

    >>> x = Numbers(torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16))
    >>> x.shape, x.dtype, x.take(np.s_[0])
    ((1, 2), 'bfloat16', array([1., 2.], dtype=float32))
    """

    def __init__(self, value: torch.Tensor | Array) -> None:
        self.dtype = str(value.dtype).removeprefix("torch.")
        self._known: dict[str, Any] = {}  # statistics, shared by all shapes of the same values
        self.notes: list[str] = []
        """How the values differ from the stored ones."""
        if isinstance(value, torch.Tensor):
            value = self._strided(value.detach())
            if value.is_complex() and value.is_conj():
                value = value.resolve_conj()
        self._data: Any = value
        self.shape = tuple(int(n) for n in value.shape)
        kind = "c" if isinstance(value, torch.Tensor) and value.is_complex() else getattr(value.dtype, "kind", "")
        if kind == "c":
            self.notes.append("complex values by their magnitude")

    def _strided(self, t: torch.Tensor) -> torch.Tensor:
        if t.is_quantized:
            self.notes.append(f"{self.dtype} values dequantized")
            return t.dequantize()
        if t.layout is torch.strided:
            return t
        layout = str(t.layout).removeprefix("torch.")
        if t.numel() <= _DENSE:
            self.notes.append(f"{layout} tensor shown with its zeros")
            return t.to_dense()
        shape = "×".join(map(str, t.shape))
        self.notes.append(f"only the stored values of a {layout} tensor of {shape}")
        return t._values() if t.layout is torch.sparse_coo else t.values()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_integral(self) -> bool:
        """Whether the values are integers or booleans."""
        if isinstance(self._data, torch.Tensor):
            return not (self._data.is_floating_point() or self._data.is_complex())
        return self._data.dtype.kind in "biu"

    def reshaped(self, *shape: int) -> Numbers:
        """The same values in another shape."""
        other = object.__new__(Numbers)
        other.dtype, other.notes, other._known = self.dtype, self.notes, self._known
        other._data = self._data.reshape(shape)
        other.shape = tuple(int(n) for n in other._data.shape)
        return other

    def take(self, index: Any = ..., *, real: bool = True) -> Array:
        """Some values as a numpy array: booleans as 0 and 1, complex values by magnitude unless not ``real``."""
        part = self._data[index]
        if isinstance(part, torch.Tensor):
            if part.dtype in _WIDER:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # complex32 is experimental
                    part = part.to(_WIDER[part.dtype])
            part = part.numpy()
        part = np.asarray(part)
        if part.dtype.kind == "c" and real:
            with np.errstate(all="ignore"):
                return np.asarray(np.abs(part))
        return part.astype(np.uint8) if part.dtype.kind == "b" else part

    def chunks(self, most: int | None = None, *, real: bool = True) -> Iterator[Array]:
        """All values, or the first ``most``, in parts, as `take` returns them."""
        flat = self.reshaped(-1)
        end = flat.size if most is None else min(most, flat.size)
        for at in range(0, end, _CHUNK):
            yield flat.take(slice(at, min(at + _CHUNK, end)), real=real)

    def digest(self) -> str:
        """A hash of shape, dtype and values."""
        hashed = xxhash.xxh3_64(f"{self.shape}{self.dtype}".encode())
        for chunk in self.chunks():
            hashed.update(np.ascontiguousarray(chunk).view(np.uint8).data if chunk.size else b"")
        return hashed.hexdigest()


def dot(x: Array, y: Array) -> float:
    """The sum of products. Not ``@``, which starts threads that wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, y))


def overall(x: torch.Tensor | Array) -> dict[str, Any]:
    """The numbers of all values of a host tensor or array together, as they are shown.

    >>> overall(torch.tensor([[1, 2], [2**62 + 1, 0]]))["max"]
    4611686018427387905

    Integers and booleans have integers as their ``min`` and ``max``. None stands for a number that does not exist: all
    of an empty tensor, the standard deviation of a single value.
    """
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.require(x, x.dtype.newbyteorder("="), ["C", "W"]))
    numbers: dict[str, Any] = {name: values[0] for name, values in finish(reduce(x, per="tensor")).items()}
    if x.numel() < 2:
        numbers["std"] = None
    if not x.numel():
        return {**numbers, "mean": None, "min": None, "max": None}
    if not (x.is_floating_point() or x.is_complex() or x.is_quantized):
        values = x.numpy()  # the numbers of `reduce` lack the last digits of large integers
        numbers |= {"min": int(values.min()), "max": int(values.max())}
    return numbers


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of `overall`: NaN and Inf show in those they reach, and are counted."""

    min: float | int | None
    mean: float | None
    max: float | int | None
    std: float | None
    nan: int
    inf: int
    non_finite: int
    count: int
    over: str
    """What min, mean, max and std are of."""


def statistics(x: Numbers) -> Stats:
    """Min, mean, max, standard deviation and the counts of what is not finite; computed once for the same values.

    >>> statistics(Numbers(torch.tensor([1.0, 3.0, float("nan")]))).nan
    1
    """
    if "statistics" not in x._known:
        values = "all values" if x.size <= STATISTICS_OF else f"the first {STATISTICS_OF:,} of {x.size:,} values"
        numbers = overall(x.reshaped(-1)._data[:STATISTICS_OF])
        x._known["statistics"] = Stats(**numbers, count=x.size, over=", ".join([values, *x.notes]))
    return x._known["statistics"]  # type: ignore[no-any-return]


def finite_range(x: Numbers) -> tuple[float | int, float | int] | None:
    """The smallest and the largest finite value, which colours and axes span; None without a finite value.

    >>> finite_range(Numbers(torch.tensor([1.0, 3.0, float("inf")])))
    (1.0, 3.0)
    """
    if "finite range" not in x._known:
        x._known["finite range"] = _finite_range(x)
    return x._known["finite range"]  # type: ignore[no-any-return]


def _finite_range(x: Numbers) -> tuple[float | int, float | int] | None:
    stats = statistics(x)
    if not stats.non_finite:
        return None if stats.min is None or stats.max is None else (stats.min, stats.max)
    chunks = (chunk[np.isfinite(chunk)] for chunk in x.chunks(STATISTICS_OF))
    ends = [(chunk.min().item(), chunk.max().item()) for chunk in chunks if chunk.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
