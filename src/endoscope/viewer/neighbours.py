"""The nearest success: a datapoint that does not fail, with the same label or the nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from endoscope.render.numbers import Array, Numbers, numbers_of
from endoscope.runs import ranking
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import walk
from endoscope.viewer.differences import comparable

MAX_READ = 1000
"""Datapoints whose label is read, spread evenly over the successes."""
MAX_COMPARED = 200
"""Datapoints whose outputs or labels are compared."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest success, and how it was chosen; without one, why there is none."""

    idx: int | None
    how: str


def nearest_success(failure: Datapoint, metric: str | None, percentile: Fraction = ranking.PERCENTILE) -> Nearest:
    """The nearest success to a datapoint.

    In a classification: a datapoint with the same label, correctly predicted, with the nearest outputs. Otherwise, as
    in regression or segmentation: the datapoint with the nearest label.
    """
    epoch, table = failure.epoch, failure.epoch.scores
    if table is None or metric is None or metric not in table.values:
        return Nearest(None, "This epoch has no scores to tell successes from failures.")
    column = ranking.column(table, metric, table.directions[metric], table.indices)
    good = table.indices[~column.fails(percentile) & ~column.missing & (table.indices != failure.idx)]
    if failure.label is not None and (failure.row is not None or epoch.outputs is None):
        return _by_outputs(failure, failure.label, good)
    return _by_label(failure, good)


def _by_outputs(failure: Datapoint, label: int, successes: NDArray[np.int64]) -> Nearest:
    """The success with the same label, correctly predicted, and the nearest outputs."""
    row, stored = comparable(failure.row), failure.stored()["outputs"]
    if row is None:
        return Nearest(None, "The outputs of this datapoint are not stored; choose the other one by its index.")
    count, candidates = _spread(successes[np.isin(successes, stored)], MAX_READ)
    distances: list[tuple[float, int]] = []
    read = 0
    for other in candidates:
        read += 1
        theirs = _correct_row(failure.beside(other), label)
        if theirs is not None and theirs.shape == row.shape:
            distances.append((_distance(row.take(), theirs.take()), other))
        if len(distances) == MAX_COMPARED:
            break
    name = failure.class_text(label)
    if not distances:
        return Nearest(None, f"None of the {len(candidates):,} successes examined is correctly predicted as “{name}”.")
    limits = f"of {len(distances):,} correctly predicted as “{name}”"
    if read < count:
        limits += f", from {read:,} of {count:,} successes"
    return Nearest(min(distances)[1], f"The nearest outputs, {limits}.")


def _correct_row(at: Datapoint, label: int) -> Numbers | None:
    """The outputs of a datapoint that has this label and is predicted to have it."""
    if at.label != label or at.prediction is None or at.prediction.index != label:
        return None
    return comparable(at.row)


def _by_label(failure: Datapoint, successes: NDArray[np.int64]) -> Nearest:
    """The success with the nearest label; between masks, the distance is the share of pixels that differ."""
    label = _label(failure)
    if label is None:
        return Nearest(None, "This datapoint has no numeric label; choose the other datapoint by its index.")
    count, candidates = _spread(successes[np.isin(successes, failure.stored()["inputs"])], MAX_COMPARED)
    is_mask = label.size > 1 and label.dtype.kind in "iu"
    distances: list[tuple[float, int]] = []
    for other in candidates:
        theirs = _label(failure.beside(other))
        if theirs is not None and theirs.shape == label.shape:
            distances.append((float((label != theirs).mean()) if is_mask else _distance(label, theirs), other))
    if not distances:
        return Nearest(None, f"None of the {len(candidates):,} successes examined has a label of the same shape.")
    limits = f"of {len(distances):,} successes" + (f", from {count:,}" if len(candidates) < count else "")
    return Nearest(min(distances)[1], f"The nearest label, {limits}.")


def _spread(indices: NDArray[np.int64], most: int) -> tuple[int, list[int]]:
    """How many indices there are, and at most ``most`` of them, spread evenly."""
    step = -(-len(indices) // most) if len(indices) else 1
    return len(indices), indices[::step].tolist()


def _label(at: Datapoint) -> Array | None:
    """The first numbers of a label."""
    return next(_label_numbers(at), None) if at.labels is not None else None


def _label_numbers(at: Datapoint) -> Iterator[Array]:
    for item in walk("labels", at.labels):
        for value in item.value.values() if isinstance(item.value, dict) else [item.value]:
            x = numbers_of(value)
            if x is not None and x.size:
                yield x.take()
            elif type(value) in (int, float):
                yield np.array([value])


def _distance(a: Array, b: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.linalg.norm((a.astype(np.float64) - b.astype(np.float64)).ravel()))
    return distance if np.isfinite(distance) else float("inf")
