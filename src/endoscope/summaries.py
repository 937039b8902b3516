"""Summaries: the numbers that a `Summary` in a captured value stands for, computed from the tensor that it names.

The reader, the dict that a call of the debugger returns, and the writer of pickle pages compute them. Where that is not
possible, an error message takes their place; nothing is raised.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from endoscope.statistics import datapoint_shape, summarize
from endoscope.values import PerDatapoint, Summary, WholeBatch, parts_of

MOST_ROWS = 1 << 16
LEAST_ROWS = 16
"""The most rows of numbers in the summaries of one value, and the least that each summary counts as: a few bytes of a
file can ask for any number of either."""


def with_summaries(value: Any, *, several: type[list[Any]] = PerDatapoint) -> Any:
    """The value with every `Summary` replaced: by the numbers of each datapoint and the shape of one; by None where the
    tensor does not exist; by ``{"error": why}`` where the numbers cannot be computed.

    >>> with_summaries({"x": torch.zeros(1, 3), "stats": Summary(of="x")})["stats"]["shape"]
    [1, 3]

    The numbers of more than one datapoint are a list of the type ``several``.
    """
    return _Summaries(several).replaced(value)


class _Summaries:
    def __init__(self, several: type[list[Any]]) -> None:
        self._several = several
        self._rows_left = MOST_ROWS
        self._known: dict[int, dict[str, Any]] = {}

    def replaced(self, value: Any) -> Any:
        if type(value) is dict:
            return self._dict(value)
        if type(value) is Summary:
            return None
        parts = parts_of(value)
        return value if parts is None else parts.rebuild([*parts.hashed], [self.replaced(v) for v in parts.values])

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        members = {k: self.replaced(v) for k, v in value.items()}
        summaries = {k: v for k, v in value.items() if isinstance(v, Summary)}
        return members | {k: self._numbers(members.get(v.of)) for k, v in summaries.items()}

    def _numbers(self, x: Any) -> Any:
        if isinstance(x, WholeBatch):
            return WholeBatch(self._numbers(x.value))
        if not isinstance(x, Tensor):
            return None
        rows = max(LEAST_ROWS, x.size(0) if x.ndim else 1)
        if rows > self._rows_left:
            return _error(f"more than {MOST_ROWS} rows in one value")
        self._rows_left -= rows
        if id(x) not in self._known:
            self._known[id(x)] = self._computed(x)
        return self._known[id(x)]

    def _computed(self, x: Tensor) -> dict[str, Any]:
        if x.is_nested:
            return _error("the rows of a nested tensor differ in shape")
        try:
            numbers = {k: v[0] if len(v) == 1 else self._several(v) for k, v in summarize(x).items()}
        except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, MemoryError) as e:
            return _error(str(e).partition("\n")[0] or type(e).__name__)
        return {**numbers, "shape": datapoint_shape(x)}


def _error(why: str) -> dict[str, Any]:
    return {"error": f"The numbers could not be computed: {why}"}
