"""Reads shapes: drops a batch dimension of one, and finds the maps, the matrix or the vector that a tensor holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from endoscope.render.numbers import Numbers


def unbatched(x: Numbers) -> Numbers:
    """Without the leading 1 that a datapoint of a batch has."""
    return x.reshaped(*x.shape[1:]) if len(x.shape) >= 2 and x.shape[0] == 1 else x


@dataclass(frozen=True, slots=True)
class Maps:
    """A tensor as maps side by side."""

    x: Numbers
    """``(n, height, width)``, or ``(n, depth, height, width)`` for volumes."""
    note: str | None
    """How the maps come from the tensor, where that is not obvious."""

    @property
    def count(self) -> int:
        return self.x.shape[0]

    @property
    def middle(self) -> int | None:
        """The slice of a volume that is shown."""
        return self.x.shape[1] // 2 if len(self.x.shape) == 4 else None


def maps(x: Numbers) -> Maps | None:
    """The maps of a tensor of 3 to 8 dimensions; None when its last two dimensions are not a picture."""
    dimensions = len(x.shape)
    if not 3 <= dimensions <= 8 or not x.size:
        return None
    inner = unbatched(x)
    *outer, height, width = inner.shape
    if min(height, width) < 2 or not outer:
        return None
    if dimensions == 5:
        *outer, depth = outer
        note = f"slice {depth // 2} of {depth} (the middle one) of each volume"
        if len(outer) == 2:
            note += f"; {outer[0]} × {outer[1]} maps"
        return Maps(inner.reshaped(math.prod(outer), depth, height, width), note)
    product = f"{' × '.join(map(str, outer))} maps" if len(outer) > 1 else None
    return Maps(inner.reshaped(math.prod(outer), height, width), product)


def matrix(x: Numbers) -> Numbers | None:
    """A tensor that is one table of rows and columns, such as tokens and features; None for any other."""
    sizes = [n for n in x.shape if n != 1]
    return x.reshaped(*sizes) if len(sizes) == 2 and x.size else None


def vector(x: Numbers) -> Numbers | None:
    """A tensor with at most one dimension that is not 1, flattened; None for any other."""
    return x.reshaped(-1) if sum(n != 1 for n in x.shape) <= 1 else None
