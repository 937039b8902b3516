"""The nearest success: a datapoint that does not fail, with the same label or the nearest one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from endoscope.render.numbers import Array, laid_out
from endoscope.runs import Epoch, Run, ranking
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import walk
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
    """The nearest success of a datapoint, or an explanation why there is none.

    In a classification it has the same label, is predicted to have it, and has the outputs that are most alike.
    Elsewhere, as in a regression or a segmentation, its label is the nearest.
    """
    wrong = Datapoint(run, epoch, idx)
    table = epoch.scores
    if table is None or metric is None or metric not in table.values:
        return Nearest(None, "This epoch has no scores that tell successes from failures.")
    column = ranking.column(table, metric, table.directions[metric], table.indices)
    good = table.indices[~column.fails(percentile) & ~column.missing & (table.indices != idx)]
    if wrong.label is not None and (wrong.row is not None or epoch.outputs is None):
        return _by_outputs(wrong, good)
    return _by_label(wrong, good)


def _by_outputs(wrong: Datapoint, successes: NDArray[np.int64]) -> Nearest:
    """Those with the same class as their label, and predicted, by the distance of the outputs."""
    mine, kept = numbers_of(wrong.row), wrong.kept()["outputs"]
    if mine is None or wrong.label is None:
        return Nearest(None, "The outputs of this datapoint were not kept; choose the other one by its index.")
    good, looked_at = _spread(successes[np.isin(successes, kept)], LOOKED_AT)
    alike: list[tuple[float, int]] = []
    seen = 0
    for other in looked_at:
        seen += 1
        one = wrong.beside(other)
        if one.label != wrong.label or one.prediction is None or one.prediction.index != one.label:
            continue
        theirs = numbers_of(one.row)
        if theirs is not None and theirs.shape == mine.shape:
            alike.append((_apart(mine.take(), theirs.take()), other))
        if len(alike) == CANDIDATES:
            break
    name = wrong.class_text(wrong.label)
    if not alike:
        return Nearest(None, f"No success is rightly predicted to be “{name}”, of {len(looked_at):,} looked at.")
    limits = f"of {len(alike):,} rightly predicted to be “{name}”"
    if seen < good:
        limits += f", from {seen:,} of {good:,} successes"
    return Nearest(min(alike)[1], f"The outputs nearest to this datapoint's, {limits}.")


def _by_label(wrong: Datapoint, successes: NDArray[np.int64]) -> Nearest:
    """By the distance of the labels: of masks the share of pixels that differ."""
    mine = _label(wrong)
    if mine is None:
        return Nearest(None, "This datapoint has no label in numbers; choose the other datapoint by its index.")
    good, looked_at = _spread(successes[np.isin(successes, wrong.kept()["inputs"])], CANDIDATES)
    alike: list[tuple[float, int]] = []
    for other in looked_at:
        theirs = _label(wrong.beside(other))
        if theirs is not None and theirs.shape == mine.shape:
            is_mask = mine.size > 1 and mine.dtype.kind in "iu"
            alike.append((float((mine != theirs).mean()) if is_mask else _apart(mine, theirs), other))
    if not alike:
        return Nearest(None, f"None of the {len(looked_at):,} successes looked at has a label of the same shape.")
    limits = f"of {len(alike):,} successes" + (f", from {good:,}" if len(looked_at) < good else "")
    return Nearest(min(alike)[1], f"The label nearest to this datapoint's, {limits}.")


def _spread(indices: NDArray[np.int64], most: int) -> tuple[int, list[int]]:
    """How many there are, and at most so many of them, spread evenly."""
    step = -(-len(indices) // most) if len(indices) else 1
    return len(indices), indices[::step].tolist()


def _label(at: Datapoint) -> Array | None:
    """The first numbers of a label."""
    for found in walk("labels", at.labels) if at.labels is not None else ():
        values = [*found.value.values()] if isinstance(found.value, dict) else [found.value]
        for value in values:
            x = laid_out(value)
            if x is not None and x.size:
                return x.take()
            if type(value) in (int, float):
                return np.array([value])
    return None


def _apart(a: Array, b: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.linalg.norm((a.astype(np.float64) - b.astype(np.float64)).ravel()))
    return distance if np.isfinite(distance) else float("inf")
