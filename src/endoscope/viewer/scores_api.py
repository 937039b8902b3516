"""The addresses of scores: /api/curves and /api/map."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.errors import closest
from endoscope.render.plain import jsonable
from endoscope.runs import Epoch, Run, layout, ranking
from endoscope.runs.fields import Direction
from endoscope.runs.files import clean
from endoscope.viewer import arrays
from endoscope.viewer.answers import Json, answer, cached_answer
from endoscope.viewer.cache import Cache
from endoscope.viewer.footprint import File, Footprint, file_state, footprint
from endoscope.viewer.library import Entry, Library, Refusal
from endoscope.viewer.score_map import ORDERS, ScoreMap
from endoscope.viewer.selection import Selection, epoch_name, epoch_of, last_scored_before, needed_epoch, scores_name

FORMS = ("json", "arrays")

Points = dict[str, dict[Any, float]]
"""By the name of a curve, its value in each epoch."""
_State = tuple[File | None, File | None]
_Means = dict[str, dict[str, float]]


def routes(library: Library) -> list[Route]:
    api = _Scores(library)
    return [Route("/api/curves", api.curves), Route("/api/map", api.map)]


class _Scores:
    """Each request calls a method on its own thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._means: Cache[_Means] = Cache(65536, lambda _: 1)

    # ---- curves
    def curves(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        chosen = zip(selection.entries, selection.runs, strict=True)
        return answer({"runs": [self._curves(entry, run) for entry, run in chosen]})

    def _curves(self, entry: Entry, run: Run) -> Json:
        files = footprint(entry.path)
        scores: Points = {}
        losses: Points = {}
        for epoch in run.epochs:
            means = self._means.get((entry.id, epoch.number), _state(epoch, files), partial(_means, epoch))
            for name, value in means["scores"].items():
                scores.setdefault(name, {})[epoch_name(epoch)] = value
            for name, value in means["losses"].items():
                losses.setdefault(name, {})[epoch_name(epoch)] = value
        _add_progress(run, scores, losses)
        directions, labels = run.directions, run.score_labels(scores)
        series = [_series(name, labels[name], "score", directions.get(name), scores[name]) for name in scores]
        series += [_series(name, name, "loss", "lower", losses[name]) for name in losses]
        return {"id": entry.id, "name": entry.name, "series": series}

    # ---- map
    def map(self, request: Request) -> Response:
        query = request.query_params
        order, form = _one_of(query, "order", ORDERS), _one_of(query, "form", FORMS)
        needs_change = _one_of(query, "change", ("yes", "no")) == "yes" or order == "change"
        selection = Selection.of(query, self._library)
        epochs = _epochs(selection)
        before = last_scored_before(epochs[0])
        numbers = tuple(epoch.number if epoch is not None else None for epoch in (*epochs, before))
        state = [
            epoch and file_state(epoch.path / scores_name(epoch))
            for epoch in (*epochs, before if needs_change else None)
        ]
        key = (selection.entries, selection.metric, order, form, needs_change, selection.percentile, numbers, state)

        def make_body() -> bytes:
            score_map = ScoreMap.of(selection, epochs, before, order, needs_change=needs_change)
            return score_map.as_arrays() if form == "arrays" else score_map.as_json()

        kind = arrays.MEDIA_TYPE if form == "arrays" else "application/json"
        tag = hashlib.blake2b(repr(key).encode(errors="surrogateescape"), digest_size=12).hexdigest()
        return cached_answer(request, tag, make_body, media_type=kind)


# ---------------------------------------------------------------- curves
def _state(epoch: Epoch, files: Footprint) -> _State:
    within = "" if epoch.number is None else f"{layout.epoch_folder(epoch.number)}/"
    return files.files.get(within + scores_name(epoch)), files.files.get(within + layout.TRAINING_LOSSES)


def _means(epoch: Epoch) -> _Means:
    table = epoch.scores
    losses = {name: _mean(values) for name, values in epoch.losses.items() if len(values)}
    return {"scores": dict(table.aggregated) if table is not None else {}, "losses": losses}


def _mean(values: ranking.Floats) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(values.mean())


def _add_progress(run: Run, scores: Points, losses: Points) -> None:
    """Fill in epochs whose files are missing or unreadable from progress.json."""
    for epoch in run.progress.epochs:
        for name, value in epoch.scores.items():
            scores.setdefault(name, {}).setdefault(epoch.epoch, value)
        if "mean" in epoch.loss:
            losses.setdefault("loss", {}).setdefault(epoch.epoch, epoch.loss["mean"])


def _series(name: str, label: str, kind: str, direction: Direction | None, points: Mapping[Any, float]) -> Json:
    epochs = sorted(points)
    values = jsonable([points[epoch] for epoch in epochs])
    return {"name": name, "label": label, "kind": kind, "direction": direction, "epochs": epochs, "values": values}


# ---------------------------------------------------------------- map
def _one_of(query: QueryParams, name: str, known: Sequence[str]) -> str:
    """The value of a parameter; the first known one by default."""
    value = query.get(name) or known[0]
    if value not in known:
        near = closest(value, known)
        raise Refusal(f"{name}={clean(value)[:40]!r} is not known{near}", hint=f"There are {', '.join(known)}.")
    return value


def _epochs(selection: Selection) -> list[Epoch | None]:
    """The epoch of each run; None for a run without it when another run has it."""
    epochs = [epoch_of(run, selection.epoch) for run in selection.runs]
    if all(epoch is None for epoch in epochs):
        needed_epoch(selection.run, selection.epoch)
    return epochs
