"""Summaries: the numbers that a `Summary` in a captured value stands for, made of the tensor that it names.

Whoever looks at a value has them made here: the reader, the dict that a call of the debugger returns, the writer of
pickle pages. What cannot be made says why; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from endoscope.statistics import datapoint_shape, summarize
from endoscope.values import DataclassValue, NamedTupleValue, PerDatapoint, Summary, WholeBatch

MOST_ROWS = 1 << 16
LEAST_ROWS = 16
"""How many rows of numbers the summaries of one value may give in all, and how many each of them counts for at least: a
few bytes of a file can name any number of either."""


def summaries_made(value: Any, *, several: type[list[Any]] = PerDatapoint) -> Any:
    """The same with every `Summary` replaced by the numbers it stands for, one a datapoint, and the shape of one; by
    None where there is no such tensor, and by ``{"error": why}`` where they cannot be made.

    >>> summaries_made({"x": torch.zeros(1, 3), "stats": Summary(of="x")})["stats"]["shape"]
    [1, 3]

    The numbers of more than one datapoint are a list of the type ``several``.
    """
    return _Summaries(several).made(value)


class _Summaries:
    """Those of one value."""

    def __init__(self, several: type[list[Any]]) -> None:
        self._several = several
        self._left = MOST_ROWS
        self._known: dict[int, dict[str, Any]] = {}
        self._too_many = _not_made(f"more than {MOST_ROWS} rows in one value")

    def made(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value) if _may_hold_any(value.values()) else value
        if kind is list or kind is tuple or kind is PerDatapoint:
            return kind([self.made(v) for v in value]) if _may_hold_any(value) else value
        if kind is NamedTupleValue:
            return NamedTupleValue(value._type, value._fields, [self.made(v) for v in value])
        if kind is DataclassValue:
            return DataclassValue(value._type, {k: self.made(v) for k, v in value._fields.items()})
        if kind is WholeBatch:
            return WholeBatch(self.made(value.value))
        return None if kind is Summary else value

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = {k: self.made(v) for k, v in value.items()}
        for name, v in value.items():
            if type(v) is Summary:
                made[name] = self._of(made.get(v.of))
        return made

    def _of(self, x: Any) -> Any:
        if type(x) is WholeBatch:
            return WholeBatch(self._of(x.value))
        if not isinstance(x, Tensor):
            return None
        rows = max(LEAST_ROWS, x.size(0) if x.ndim else 1)
        if rows > self._left:
            return self._too_many
        self._left -= rows
        if id(x) not in self._known:
            self._known[id(x)] = self._numbers(x)
        return self._known[id(x)]

    def _numbers(self, x: Tensor) -> dict[str, Any]:
        if x.is_nested:
            return _not_made("the rows of a nested tensor differ in shape")
        try:
            numbers = {k: v[0] if len(v) == 1 else self._several(v) for k, v in summarize(x).items()}
        except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, MemoryError) as e:
            return _not_made(str(e).partition("\n")[0] or type(e).__name__)
        return {**numbers, "shape": datapoint_shape(x)}


def _not_made(why: str) -> dict[str, Any]:
    return {"error": f"The numbers cannot be made: {why}"}


_HOLDERS = frozenset((Summary, dict, list, tuple, PerDatapoint, NamedTupleValue, DataclassValue, WholeBatch))


def _may_hold_any(values: Iterable[Any]) -> bool:
    return not _HOLDERS.isdisjoint(map(type, values))
