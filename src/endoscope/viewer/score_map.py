"""ScoreMap: one score of all datapoints of one or several runs, in the order of display."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import closest
from endoscope.runs import Epoch, ScoreTable, ranking
from endoscope.runs.fields import Direction
from endoscope.runs.files import clean
from endoscope.viewer import arrays
from endoscope.viewer.answers import Json, encode, numbers
from endoscope.viewer.library import Refusal
from endoscope.viewer.selection import Selection, epoch_name

ORDERS = ("failures", "index", "change", "disagreement")

Tables = Sequence[ScoreTable | None]
Epochs = Sequence[Epoch | None]


@dataclass(frozen=True, slots=True)
class ScoreMap:
    """The answer to /api/map, as numbers. Arrays are by ascending index; `order` gives the positions to show."""

    head: Json
    """Everything but the long lists."""
    indices: NDArray[np.int64]
    columns: Sequence[ranking.Column]
    """The score in each run."""
    fails: Sequence[ranking.Bools]
    """Which datapoints fail in each run."""
    change: ranking.Change | None
    """In the first run, since an earlier epoch."""
    order: ranking.Positions

    @classmethod
    def of(
        cls, selection: Selection, epochs: Epochs, before: Epoch | None, order: str, *, needs_change: bool
    ) -> ScoreMap:
        """``epochs`` has one for each run. The scores of ``before`` take as long to read as those of the map."""
        tables = _tables(epochs)
        metric = selection.metric or next(iter(_metrics(tables)), "")
        problems = [*_problems(selection, epochs, tables, metric)]
        direction, indices = _direction(metric, tables), _indices(metric, tables)
        columns = [ranking.column(table, metric, direction, indices) for table in tables]
        fails = [column.fails(selection.percentile) for column in columns]
        change = _change(columns[0], before, metric, indices) if needs_change else None
        if order == "change" and change is None:
            order = "index"
            problems.append("no earlier epoch has this score; the order is by index")
        head: Json = {
            **_names(selection, epochs),
            "order": order,
            "percentile": float(selection.percentile),
            "problems": problems,
            "metric": metric or None,
            "direction": direction if metric else None,
            "previous_epoch": _previous(before, change, needs_change=needs_change),
            **_counts(columns, fails),
        }
        return cls(head, indices, columns, fails, change, _positions(order, columns, fails, change))

    def as_json(self) -> bytes:
        order, change = self.order, self.change
        lists = {
            "indices": self.indices[order].tolist(),
            "values": [numbers(column.values[order], column.missing[order]) for column in self.columns],
            "change": numbers(change.values[order], change.missing[order]) if change is not None else None,
            "fails": [fails[order].astype(int).tolist() for fails in self.fails],
            "common": np.sum(self.fails, axis=0)[order].tolist(),
        }
        return encode({**self.head, **lists})

    def as_arrays(self) -> bytes:
        order, change = self.order, self.change
        lists: dict[str, NDArray[Any]] = {
            "indices": self.indices[order],
            "common": np.sum(self.fails, axis=0)[order],
        }
        for k, column in enumerate(self.columns):
            lists |= {f"values/{k}": column.values[order], f"absent/{k}": column.missing[order]}
            lists[f"fails/{k}"] = self.fails[k][order]
        if change is None:
            return arrays.pack({**self.head, "change": None}, lists)
        return arrays.pack(self.head, {**lists, "change": change.values[order], "change_absent": change.missing[order]})


def _tables(epochs: Epochs) -> Tables:
    return [epoch.scores if epoch is not None else None for epoch in epochs]


def _metrics(tables: Tables) -> list[str]:
    return [*dict.fromkeys(name for table in tables if table is not None for name in table.values)]


def _indices(metric: str, tables: Tables) -> NDArray[np.int64]:
    """The datapoints of all runs, ascending; for a single run its own array, which `ranking.column` need not search."""
    if not metric:
        return np.empty(0, np.int64)
    return reduce(np.union1d, (table.indices for table in tables if table is not None))


def _change(
    column: ranking.Column, before: Epoch | None, metric: str, indices: NDArray[np.int64]
) -> ranking.Change | None:
    table = before.scores if before is not None else None
    if table is None or metric not in table.values:
        return None
    return ranking.change(column, ranking.column(table, metric, column.direction, indices))


def _previous(before: Epoch | None, change: ranking.Change | None, *, needs_change: bool) -> int | None:
    """The epoch that `change` refers to, or would refer to."""
    return before.number if before is not None and (change is not None or not needs_change) else None


def _positions(
    order: str, columns: Sequence[ranking.Column], fails: Sequence[ranking.Bools], change: ranking.Change | None
) -> ranking.Positions:
    if order == "failures":
        return ranking.common_first(columns, fails)
    if order == "change" and change is not None:
        return change.worst_first()
    if order == "disagreement":
        return ranking.disagreement_first(columns)
    return np.arange(len(columns[0].values))


def _names(selection: Selection, epochs: Epochs) -> Json:
    names = [epoch_name(epoch) if epoch is not None else None for epoch in epochs]
    runs = [entry.id for entry in selection.entries]
    return {"epoch": next(name for name in names if name is not None), "epochs": names, "runs": runs}


def _counts(columns: Sequence[ranking.Column], fails: Sequence[ranking.Bools]) -> Json:
    finite = np.concatenate([column.values[np.isfinite(column.values)] for column in columns])
    return {
        "scored": sum(not column.missing.all() for column in columns),
        "failures": [int(each.sum()) for each in fails],
        "range": [float(finite.min()), float(finite.max())] if len(finite) else None,
        "nan": sum(int(column.nan.sum()) for column in columns),
        "missing": sum(int(column.missing.sum()) for column in columns),
    }


def _problems(selection: Selection, epochs: Epochs, tables: Tables, metric: str) -> Iterator[str]:
    """Why a run has nothing to show, where another one may have."""
    for entry, epoch, table in zip(selection.entries, epochs, tables, strict=True):
        if epoch is None:
            yield f"{entry.name} has no epoch {selection.epoch}"
        elif table is None:
            yield f"{entry.name} has no scores in this epoch that can be read"
        elif metric and metric not in table.values:
            yield f"the datapoints of {entry.name} have no score {metric!r}"


def _direction(metric: str, tables: Tables) -> Direction:
    """The direction in the first run that has the score; `Refusal` when none has it."""
    if not metric:
        return "lower"
    known = _metrics(tables)
    if not known:
        raise Refusal("this epoch has no readable scores", hint="Another epoch may have some.", status=404)
    for table in tables:
        if table is not None and metric in table.values:
            return table.directions[metric]
    hint = f"There are {', '.join(known[:20])}."
    raise Refusal(f"no datapoint has the score {clean(metric)[:80]!r}{closest(metric, known)}", hint=hint, status=404)
