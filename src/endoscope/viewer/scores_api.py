"""The addresses about scores: /api/curves and /api/map."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.errors import closest
from endoscope.runs import Epoch, Run, ScoreTable, layout, ranking
from endoscope.runs.fields import Direction
from endoscope.runs.files import clean
from endoscope.viewer import arrays
from endoscope.viewer.answers import answer, answer_once, encode, number, numbers
from endoscope.viewer.cache import Cache
from endoscope.viewer.footprint import Footprint, footprint
from endoscope.viewer.library import (
    Entry,
    Library,
    Refusal,
    Selection,
    epoch_name,
    epoch_of,
    needed_epoch,
    scores_name,
)
from endoscope.viewer.read_ahead import ReadAhead

ORDERS = ("failures", "index", "change", "disagreement")
FORMS = ("json", "arrays")
_KEPT = 4 << 20  # bytes of answers that stay in memory: a browser keeps its own


def routes(library: Library, ahead: ReadAhead) -> list[Route]:
    api = _Scores(library, ahead)
    return [
        Route("/api/curves", api.curves),
        Route("/api/map", api.map),
    ]


class _Scores:
    """Answers, and what is kept to answer fast. Each method is called on a thread of its own."""

    def __init__(self, library: Library, ahead: ReadAhead) -> None:
        self._library = library
        self._ahead = ahead
        self._encoded: Cache[bytes] = Cache(_KEPT, len)
        self._means: Cache[Mapping[str, Any]] = Cache(65536, lambda _: 1)

    # ---- curves
    def curves(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        chosen = zip(selection.entries, selection.runs, strict=True)
        return answer({"runs": [self._curves(entry, run) for entry, run in chosen]})

    def _curves(self, entry: Entry, run: Run) -> dict[str, Any]:
        done = {one.epoch: one for one in run.progress.epochs}
        there = footprint(entry.path)
        scores: dict[str, dict[Any, float]] = {}
        losses: dict[str, dict[Any, float]] = {}
        for epoch in run.epochs:
            means = self._means.get((entry.id, epoch.number), _state(epoch, there), partial(_means, epoch))
            for name, value in means["scores"].items():
                scores.setdefault(name, {})[epoch_name(epoch)] = value
            for name, value in means["losses"].items():
                losses.setdefault(name, {})[epoch_name(epoch)] = value
        for at, one in done.items():  # of epochs whose files are not there, or cannot be read
            for name, value in one.scores.items():
                scores.setdefault(name, {}).setdefault(at, value)
            if "mean" in one.loss:
                losses.setdefault("loss", {}).setdefault(at, one.loss["mean"])
        directions = run.directions
        labels = run.score_labels(scores)
        series = [_series(name, "score", directions.get(name), points) for name, points in scores.items()]
        series = [{**one, "label": labels[one["name"]]} for one in series]
        series += [{**_series(name, "loss", "lower", points), "label": name} for name, points in losses.items()]
        return {"id": entry.id, "name": entry.name, "series": series}

    # ---- map
    def map(self, request: Request) -> Response:
        wanted = _MapQuery.of(request.query_params)
        selection = Selection.of(request.query_params, self._library)
        epochs = _epochs(selection)
        before = _scored_before(epochs[0])
        of = tuple(epoch.number if epoch is not None else None for epoch in (*epochs, before))
        key = (selection.entries, selection.metric, wanted, selection.percentile, of)
        state = tuple(_scores_state(epoch) for epoch in (*epochs, before if wanted.change else None))
        with self._ahead.paused():
            body = self._encoded.get(key, state, lambda: _map(selection, epochs, before, wanted))
        self._ahead.read_beside(epochs[0])
        return answer_once(request, body, _digest(repr((key, state))), media_type=wanted.media_type)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()


# ---------------------------------------------------------------- curves
def _state(epoch: Epoch, there: Footprint) -> tuple[Any, ...]:
    within = "" if epoch.number is None else f"{layout.epoch_folder(epoch.number)}/"
    return there.files.get(within + scores_name(epoch)), there.files.get(within + layout.TRAINING_LOSSES)


def _means(epoch: Epoch) -> dict[str, dict[str, float]]:
    table = epoch.scores
    losses = {name: _mean(values) for name, values in epoch.losses.items() if len(values)}
    return {"scores": dict(table.aggregated) if table is not None else {}, "losses": losses}


def _mean(values: ranking.Floats) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(values.mean())


def _series(name: str, kind: str, direction: Direction | None, points: Mapping[Any, float]) -> dict[str, Any]:
    epochs = sorted(points)
    values = [number(points[epoch]) for epoch in epochs]
    return {"name": name, "kind": kind, "direction": direction, "epochs": epochs, "values": values}


# ---------------------------------------------------------------- map
@dataclass(frozen=True, slots=True)
class _MapQuery:
    order: str
    form: str
    change: bool
    """Whether the change since the epoch before is wanted: its scores take as long to read as those of the map."""

    @classmethod
    def of(cls, query: QueryParams) -> _MapQuery:
        order = _one_of(query, "order", ORDERS)
        change = _one_of(query, "change", ("yes", "no")) == "yes" or order == "change"
        return cls(order, _one_of(query, "form", FORMS), change)

    @property
    def media_type(self) -> str:
        return arrays.MEDIA_TYPE if self.form == "arrays" else "application/json"


def _one_of(query: QueryParams, name: str, known: Sequence[str]) -> str:
    """The value of a parameter, the first of those that are known when it is left out."""
    found = query.get(name) or known[0]
    if found not in known:
        near = closest(found, known)
        raise Refusal(f"{name}={clean(found)[:40]!r} is none{near}", hint=f"There are {', '.join(known)}.")
    return found


def _epochs(selection: Selection) -> list[Epoch | None]:
    """Of each run; None where a run has no such epoch and another one has."""
    found = [epoch_of(run, selection.epoch) for run in selection.runs]
    if all(epoch is None for epoch in found):
        needed_epoch(selection.run, selection.epoch)
    return found


def _scored_before(epoch: Epoch | None) -> Epoch | None:
    """The last scored epoch before this one."""
    if epoch is None or epoch.number is None:
        return None
    earlier = [other for other in epoch.run.epochs if other.number is not None and other.number < epoch.number]
    return next((other for other in reversed(earlier) if other.holds(scores_name(other))), None)


def _scores_state(epoch: Epoch | None) -> tuple[int, ...] | None:
    """Changes when the epoch's score file does."""
    if epoch is None:
        return None
    try:
        about = (epoch.path / scores_name(epoch)).lstat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino


def _map(selection: Selection, epochs: Sequence[Epoch | None], before: Epoch | None, wanted: _MapQuery) -> bytes:
    tables = [epoch.scores if epoch is not None else None for epoch in epochs]
    metric = selection.metric or next((name for table in tables if table is not None for name in table.values), None)
    problems = [*_problems(selection, epochs, tables, metric)]
    direction: Direction | None = None
    indices = np.empty(0, np.int64)
    if metric is not None:
        direction = _direction(metric, tables)
        indices = reduce(np.union1d, (table.indices for table in tables if table is not None))
    columns = [ranking.column(table, metric or "", direction or "lower", indices) for table in tables]
    fails = [column.fails(selection.percentile) for column in columns]
    earlier = before.scores if before is not None and wanted.change else None
    change = None
    if earlier is not None and metric is not None and metric in earlier.values:
        change = ranking.change(columns[0], ranking.column(earlier, metric, columns[0].direction, indices))
    if wanted.order == "change" and change is None:
        problems.append("there is no earlier epoch with this score; the order is that of the indices")
    if wanted.order == "failures":
        order = ranking.common_first(columns, fails)
    elif wanted.order == "change" and change is not None:
        order = change.worst_first()
    elif wanted.order == "disagreement":
        order = ranking.disagreement_first(columns)
    else:
        order = np.arange(len(indices))
    finite = np.concatenate([column.values[np.isfinite(column.values)] for column in columns])
    names = [epoch_name(epoch) if epoch is not None else None for epoch in epochs]
    head: dict[str, Any] = {
        "epoch": next(name for name in names if name is not None),
        "epochs": names,
        "order": "index" if wanted.order == "change" and change is None else wanted.order,
        "percentile": float(selection.percentile),
        "runs": [entry.id for entry in selection.entries],
        "problems": problems,
        "metric": metric,
        "direction": direction,
        "previous_epoch": before.number if before is not None and (change is not None or not wanted.change) else None,
        "scored": sum(not column.missing.all() for column in columns),
        "failures": [int(each.sum()) for each in fails],
        "range": [float(finite.min()), float(finite.max())] if len(finite) else None,
        "nan": sum(int(column.nan.sum()) for column in columns),
        "missing": sum(int(column.missing.sum()) for column in columns),
    }
    common = np.sum(fails, axis=0)
    if wanted.form == "arrays":
        lists: dict[str, NDArray[Any]] = {"indices": indices[order], "common": common[order]}
        for k, column in enumerate(columns):
            lists |= {f"values/{k}": column.values[order], f"absent/{k}": column.missing[order]}
            lists[f"fails/{k}"] = fails[k][order]
        if change is not None:
            lists |= {"change": change.values[order], "change_absent": change.missing[order]}
        return arrays.pack(head if change is not None else {**head, "change": None}, lists)
    head |= {
        "indices": indices[order].tolist(),
        "values": [numbers(column.values[order], column.missing[order]) for column in columns],
        "change": numbers(change.values[order], change.missing[order]) if change is not None else None,
        "fails": [each[order].astype(int).tolist() for each in fails],
        "common": common[order].tolist(),
    }
    return encode(head)


def _problems(
    selection: Selection, epochs: Sequence[Epoch | None], tables: Sequence[ScoreTable | None], metric: str | None
) -> Iterator[str]:
    """Why a run has nothing to show, where another one may have."""
    for entry, epoch, table in zip(selection.entries, epochs, tables, strict=True):
        if epoch is None:
            yield f"{entry.name} has no epoch {selection.epoch}"
        elif table is None:
            yield f"{entry.name} has no scores in this epoch that can be read"
        elif metric is not None and metric not in table.values:
            yield f"the datapoints of {entry.name} have no score {metric!r}"


def _direction(metric: str, tables: Sequence[ScoreTable | None]) -> Direction:
    """That of the first run that has the score; `Refusal` when none has."""
    having = [table for table in tables if table is not None and metric in table.values]
    if having:
        return having[0].directions[metric]
    known = [*dict.fromkeys(name for table in tables if table is not None for name in table.values)]
    if not known:
        raise Refusal("no scores of this epoch can be read", hint="Another epoch may have some.", status=404)
    hint = f"There are {', '.join(known[:20])}."
    raise Refusal(f"no datapoint has the score {clean(metric)[:80]!r}{closest(metric, known)}", hint=hint, status=404)
