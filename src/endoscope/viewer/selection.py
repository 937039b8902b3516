"""Selection: what the query of a request selects. It names epochs and datapoints by numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from starlette.datastructures import QueryParams

from endoscope.runs import Epoch, Run, layout
from endoscope.runs.files import clean
from endoscope.runs.ranking import PERCENTILE
from endoscope.viewer.library import Entry, Library, Refusal

MAX_RUNS = 16
"""Runs that one query may name."""

EpochQuery = int | Literal["eval"] | None


@dataclass(frozen=True, slots=True)
class Selection:
    """One or several runs, and if the query names them an epoch, a score, a datapoint, and the share that fails.

    >>> selection = Selection.of(request.query_params, library)
    >>> selection.entry.name, selection.run, selection.epoch, selection.metric, selection.dp
    ('digits', <Run ...>, 4, 'loss', 17)
    """

    entries: tuple[Entry, ...]
    runs: tuple[Run, ...]
    """At least one; as many as `entries`."""
    epoch: EpochQuery
    """From the query; `epoch_of` gives the epoch of a run."""
    metric: str | None
    dp: int | None
    percentile: Fraction
    """How many of a run's datapoints fail; see `ranking.Column.fails`."""

    @classmethod
    def of(cls, query: QueryParams, library: Library) -> Selection:
        """`Refusal` for a value that is not allowed or a run that does not exist. The default is the first run."""
        ids = [*dict.fromkeys(query.getlist("run"))] or [entry.id for entry in library.entries()[:1]]
        if not ids:
            raise Refusal("there is no run yet", hint="This page shows one as soon as it is written.", status=404)
        if len(ids) > MAX_RUNS:
            raise Refusal(f"{len(ids)} runs are too many at once", hint=f"Choose at most {MAX_RUNS}.")
        entries = tuple(map(library.entry, ids))
        runs = tuple(map(library.run, ids))
        epoch, metric, dp = _epoch(query.get("epoch")), query.get("metric") or None, integer(query, "dp")
        return cls(entries, runs, epoch, metric, dp, _percentile(query.get("percentile")))

    @property
    def entry(self) -> Entry:
        return self.entries[0]

    @property
    def run(self) -> Run:
        return self.runs[0]

    def needed_dp(self) -> int:
        if self.dp is None:
            raise Refusal("the query names no datapoint", hint="Add dp=, the datapoint's index.")
        return self.dp


# ---------------------------------------------------------------- epochs
def epoch_of(run: Run, query: EpochQuery = None) -> Epoch | None:
    """An epoch of a run; None when the run does not have it.

    The default is the last epoch with scores, or else the last one. An evaluation has one epoch, whatever the query.
    """
    epochs = run.epochs
    if isinstance(query, int) and run.kind != "evaluation":
        return next((epoch for epoch in epochs if epoch.number == query), None)
    scored = (epoch for epoch in reversed(epochs) if epoch.holds(scores_name(epoch)))
    return next(scored, epochs[-1] if epochs else None)


def needed_epoch(run: Run, query: EpochQuery = None) -> Epoch:
    """The same; `Refusal` when there is none."""
    epoch = epoch_of(run, query)
    if epoch is not None:
        return epoch
    if query is None:
        raise Refusal("this run has no epoch yet", hint="This page shows it as soon as it is written.", status=404)
    numbers = [epoch.number for epoch in run.epochs]
    hint = f"It has {len(numbers)}, from {numbers[0]} to {numbers[-1]}." if numbers else "It has none yet."
    raise Refusal(f"this run has no epoch {query}", hint=hint, status=404)


def scores_name(epoch: Epoch) -> str:
    """The name of an epoch's score file."""
    return layout.scores_file("evaluation" if epoch.number is None else "validation")


def epoch_name(epoch: Epoch) -> int | Literal["eval"]:
    """An epoch in JSON and in addresses."""
    return "eval" if epoch.number is None else epoch.number


def last_scored_before(epoch: Epoch | None) -> Epoch | None:
    """The last scored epoch before this one."""
    if epoch is None or epoch.number is None:
        return None
    earlier = [other for other in epoch.run.epochs if other.number is not None and other.number < epoch.number]
    return next((other for other in reversed(earlier) if other.holds(scores_name(other))), None)


# ---------------------------------------------------------------- values of a query
def integer(query: QueryParams, name: str) -> int | None:
    """An integer of a query; None when it is left out."""
    text = query.get(name)
    if not text:
        return None
    if not re.fullmatch("-?(0|[1-9][0-9]{0,18})", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise Refusal(f"{name}={clean(text)[:40]!r} is not a 64-bit integer")
    return int(text)


def _percentile(text: str | None) -> Fraction:
    """Exact, so that 7 % of 100 are 7 and not 8."""
    if not text:
        return PERCENTILE
    digits = text.replace(".", "", 1)
    if not digits.isascii() or not digits.isdecimal() or len(text) > 12 or Fraction(text) > 100:
        raise Refusal(f"percentile={clean(text)[:40]!r} is not a percentage", hint="Give a number from 0 to 100.")
    return Fraction(text)


def _epoch(text: str | None) -> EpochQuery:
    if not text or text == "eval":
        return "eval" if text else None
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text):
        raise Refusal(f"epoch={clean(text)[:40]!r} is not an epoch", hint="Epochs are 0, 1, 2 ..., or eval.")
    return int(text)
