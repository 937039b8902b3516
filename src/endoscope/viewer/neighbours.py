"""The nearest success: the datapoint with the same label that does not fail and whose outputs are most alike."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from endoscope.runs import Epoch, Run
from endoscope.viewer import ranking
from endoscope.viewer.datapoint import Datapoint
from endoscope.viewer.differences import numbers_of

LOOKED_AT = 1000
"""Datapoints whose label is read, spread evenly over those that do not fail."""
CANDIDATES = 200
"""Datapoints with the same label whose outputs are compared."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """What was found, and how it was looked for."""

    idx: int | None
    how: str


def nearest_success(
    run: Run, epoch: Epoch, idx: int, metric: str | None, percentile: Fraction = ranking.PERCENTILE
) -> Nearest:
    """The nearest success of a datapoint with one class as its label, or an explanation why there is none."""
    wrong = Datapoint(run, epoch, idx)
    table, kept = epoch.scores, epoch.outputs
    if table is None or metric is None or metric not in table.values:
        return Nearest(None, "This epoch has no scores that tell successes from failures.")
    if wrong.label is None:
        return Nearest(None, "This datapoint's label is not one class; choose the other datapoint by its index.")
    mine = numbers_of(wrong.row)
    if kept is None or mine is None:
        return Nearest(None, "The outputs of this datapoint were not kept; choose the other one by its index.")
    fails = ranking.column(table, metric, table.directions[metric], table.indices).fails(percentile)
    there = np.isin(table.indices, np.fromiter(kept, np.int64, len(kept)))
    good = table.indices[~fails & there & (table.indices != idx)].tolist()
    step = -(-len(good) // LOOKED_AT) if good else 1
    looked_at = good[::step]
    alike: list[tuple[float, int]] = []
    for other in looked_at:
        one = wrong.beside(other)
        if one.label != wrong.label:
            continue
        theirs = numbers_of(one.row)
        if theirs is not None and theirs.shape == mine.shape:
            alike.append((_apart(mine.take(), theirs.take()), other))
        if len(alike) == CANDIDATES:
            break
    name = wrong.class_text(wrong.label)
    if not alike:
        return Nearest(None, f"None of the {len(looked_at):,} successes looked at has the label {name!r}.")
    limits = f"of {len(alike):,} successes with the label {name!r}"
    if step > 1 or len(alike) == CANDIDATES:
        limits += f", from {len(looked_at):,} of {len(good):,} successes"
    return Nearest(min(alike)[1], f"The outputs nearest to this datapoint's, {limits}.")


def _apart(
    a: np.ndarray[tuple[int, ...], np.dtype[np.float64]], b: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
    return distance if np.isfinite(distance) else float("inf")
