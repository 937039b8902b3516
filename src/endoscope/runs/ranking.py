"""Ranking: which datapoints of a score table do worst, which of them fail, and in which order they are shown.

NaN is worse than any number. A datapoint without the score is neither good nor bad: it never fails and comes last.
Ties are in order of index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from endoscope.runs import ScoreTable
from endoscope.runs.fields import Direction

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Positions = NDArray[np.intp]

PERCENTILE = Fraction(5)
"""The share of a run's datapoints that fail by default."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One score of some datapoints, in ascending order of index."""

    values: Floats
    missing: Bools
    direction: Direction

    @property
    def badness(self) -> Floats:
        """Larger is worse. Infinite for NaN, too, which still sorts before infinities."""
        worse = -self.values if self.direction == "higher" else self.values
        return np.where(np.isnan(worse), np.inf, worse)

    @property
    def nan(self) -> Bools:
        return np.isnan(self.values) & ~self.missing

    def worst_first(self) -> Positions:
        return np.lexsort((-self.badness, ~self.nan, self.missing))

    def ranks(self) -> NDArray[np.int64]:
        """1 for the worst. Ties share a rank, and the next rank counts all of them: 1, 2, 2, 4.

        All NaN tie, and so do all missing ones, which come last.
        """
        order = self.worst_first()
        badness = np.where(self.missing, np.inf, self.badness)
        begins = np.zeros(len(order), np.intp)
        for key in (badness[order], self.nan[order], self.missing[order]):
            begins[1:] |= key[1:] != key[:-1]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.maximum.accumulate(begins * np.arange(len(order))) + 1
        return ranks

    def place(self, at: int) -> tuple[int, int]:
        """The rank of a datapoint that has the score, as in `ranks`, and how many share it; without sorting."""
        nan = self.nan
        if nan[at]:
            return 1, int(nan.sum())
        numbers, badness = ~self.missing & ~nan, self.badness
        worse = int(nan.sum()) + int((numbers & (badness > badness[at])).sum())
        return worse + 1, int((numbers & (badness == badness[at])).sum())

    def fails(self, percentile: Fraction = PERCENTILE) -> Bools:
        """Every NaN, and the worst ``percentile`` % of those that have the score, rounded up.

        Ties fail together or not at all: they do not fail when there are too many of them, unless they are the worst.
        A datapoint as good as the best never fails below 100 %: a right answer is not a failure, however few wrong
        ones there are.
        """
        fails = self.nan
        numbers = ~self.missing & ~fails
        most = -int(-percentile * int((~self.missing).sum()) // 100) - int(fails.sum())
        if most <= 0 or not numbers.any():
            return fails
        badness = self.badness
        worst = np.sort(badness[numbers])[::-1]
        edge = worst[min(most, len(worst)) - 1]
        tie_beyond = most < len(worst) and worst[most] == edge
        chosen = numbers & (badness > edge if tie_beyond and edge < worst[0] else badness >= edge)
        if percentile < 100:
            chosen &= badness > worst[-1]
        fails[chosen] = True
        return fails


def column(table: ScoreTable | None, metric: str, direction: Direction, indices: NDArray[np.int64]) -> Column:
    """A score of the datapoints ``indices``, which ascend; all missing if the table does not have the score."""
    if table is not None and metric in table.values and indices is table.indices:
        absent = table.missing.get(metric)
        return Column(table.values[metric], absent if absent is not None else np.zeros(len(indices), bool), direction)
    values, missing = np.full(len(indices), np.nan), np.ones(len(indices), bool)
    if table is not None and metric in table.values:
        known = np.isin(indices, table.indices, assume_unique=True)
        at = np.searchsorted(table.indices, indices[known])
        values[known] = table.values[metric][at]
        absent = table.missing.get(metric)
        missing[known] = absent[at] if absent is not None else False
    return Column(values, missing, direction)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """How a score has changed since an earlier epoch."""

    values: Floats
    """Now minus before; NaN where either is NaN."""
    missing: Bools
    """Where either is missing."""
    worsening: Floats
    """Larger is worse: infinite where a number became NaN, negative infinite where NaN became a number."""
    turned: Bools
    """Where a number became NaN."""

    def worst_first(self) -> Positions:
        return np.lexsort((-self.worsening, ~self.turned, self.missing))


def change(now: Column, before: Column) -> Change:
    missing = now.missing | before.missing
    is_nan, was_nan = np.isnan(now.values), np.isnan(before.values)
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.where(now.values == before.values, 0.0, now.values - before.values)
    worsening = -values if now.direction == "higher" else values.copy()
    worsening[is_nan & was_nan] = 0.0
    worsening[was_nan & ~is_nan] = -np.inf
    turned = is_nan & ~was_nan & ~missing
    worsening[turned] = np.inf
    worsening[missing] = 0.0
    return Change(values, missing, worsening, turned)


def common_first(columns: Sequence[Column], fails: Sequence[Bools]) -> Positions:
    """Those that fail in most runs first, then by worst rank in any run; those that no run has come last."""
    often = np.sum(fails, axis=0)
    length = len(often)
    ranks = [np.where(one.missing, length + 1, one.ranks()) for one in columns]
    return np.lexsort((np.min(ranks, axis=0), -often))


def disagreement_first(columns: Sequence[Column]) -> Positions:
    """The largest difference between runs first, after those that are NaN in some runs only.

    Those that fewer than two runs have come last.
    """
    values = np.stack([one.values for one in columns])
    missing = np.stack([one.missing for one in columns])
    nan = np.isnan(values) & ~missing
    number = ~np.isnan(values)
    high = np.where(number, values, -np.inf).max(axis=0)
    low = np.where(number, values, np.inf).min(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.where((high == low) | ~number.any(axis=0), 0.0, high - low)
    mixed = nan.any(axis=0) & number.any(axis=0)
    alone = (~missing).sum(axis=0) < 2
    return np.lexsort((-spread, ~mixed, alone))
