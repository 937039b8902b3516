"""The addresses about datapoints: /api/datapoint, /api/worst, /api/captured, /api/image, /api/time and /api/compare."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from endoscope.errors import EndoscopeError
from endoscope.runs import Epoch, Run
from endoscope.viewer import items, ranking, scales
from endoscope.viewer.answers import answer, encode
from endoscope.viewer.datapoint import Datapoint
from endoscope.viewer.differences import Difference, difference, difference_picture, has_picture, numbers_of
from endoscope.viewer.library import (
    Entry,
    Library,
    Refusal,
    Selection,
    epoch_name,
    epoch_of,
    needed_epoch,
    scores_name,
    whole,
)
from endoscope.viewer.neighbours import nearest_success
from endoscope.viewer.render.plain import jsonable
from endoscope.viewer.render.registry import View, describe, picture
from endoscope.viewer.values import Found

MOST_WORST = 200
MOST_CAPTURED = 10_000
MOST_EPOCHS = 100
"""Epochs of one datapoint through time."""
MODES = ("success", "runs", "epochs")
_AT_ONCE = 4  # pictures that are drawn at the same time

Json = dict[str, Any]


def routes(library: Library) -> list[Route]:
    api = _Values(library)
    return [
        Route("/api/datapoint", api.datapoint),
        Route("/api/worst", api.worst),
        Route("/api/captured", api.captured),
        Route("/api/image", api.image),
        Route("/api/time", api.time),
        Route("/api/compare", api.compare),
    ]


class _Side:
    """A datapoint, with the run's id for addresses."""

    def __init__(self, entry: Entry, datapoint: Datapoint) -> None:
        self.entry = entry
        self.datapoint = datapoint

    def query(self, prefix: str = "") -> dict[str, Any]:
        at = self.datapoint
        return {f"{prefix}run": self.entry.id, f"{prefix}epoch": epoch_name(at.epoch), f"{prefix}dp": at.idx}

    def address(self, found: Found, version: str) -> str:
        return "/api/image?" + urlencode({**self.query(), "item": found.id, "v": version})

    def item(self, found: Found) -> Json:
        return items.item(self.datapoint, found, self.address, str(self.entry.path))

    def facts(self, percentile: Fraction) -> Json:
        at = self.datapoint
        return {
            **self.query(),
            "name": self.entry.name,
            "label": at.label_text,
            "prediction": _prediction(at),
            "scores": scores_of(at.epoch, at.idx, percentile),
        }


class _Values:
    """Each method is called on a thread of its own."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._drawing = threading.BoundedSemaphore(_AT_ONCE)

    # ---- one datapoint
    def datapoint(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        side = self._side(selection)
        at = side.datapoint
        self._must_exist(at)
        facts = jsonable(side.facts(selection.percentile))
        if request.query_params.get("form") != "lines":
            return answer({**facts, **self._inside(side)})
        lines = (encode(part()) + b"\n" for part in (lambda: facts, lambda: self._inside(side)))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _inside(self, side: _Side) -> Json:
        """The values of a datapoint, which take longer than what is said of it."""
        at = side.datapoint
        sections = items.sections(at, side.address, str(side.entry.path), self._library.shown)
        try:
            notes: Mapping[str, Any] = at.notes()
        except EndoscopeError:
            notes = {}  # the section of debug outputs says what is damaged
        return {"sections": sections, "notes": jsonable(notes)}

    def _side(self, selection: Selection) -> _Side:
        epoch = needed_epoch(selection.run, selection.epoch)
        return _Side(selection.entry, Datapoint(selection.run, epoch, selection.needed_dp()))

    def _must_exist(self, at: Datapoint) -> None:
        table = at.epoch.scores
        known = table is not None and _is_among(at.idx, table.indices)
        if not known and not at.is_kept:
            raise Refusal(f"this epoch has no datapoint {at.idx}", hint="Choose one on the score map.", status=404)

    # ---- worst datapoints
    def worst(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        n = whole(request.query_params, "n")
        n = 20 if n is None else n
        if not 1 <= n <= MOST_WORST:
            raise Refusal(f"n={n} is not from 1 to {MOST_WORST}")
        run, epoch = selection.run, needed_epoch(selection.run, selection.epoch)
        table = epoch.scores
        if table is None or not table.values:
            return answer({"rows": []})
        metric = _metric(epoch, selection.metric)
        column = ranking.column(table, metric, table.directions[metric], table.indices)
        before = _scored_before(run, epoch)
        change = None
        if before is not None:
            earlier = ranking.column(before.scores, metric, table.directions[metric], table.indices)
            change = ranking.change(column, earlier)
        rows = []
        first = Datapoint(run, epoch, 0)
        for at in column.worst_first()[:n].tolist():
            if column.missing[at]:
                break
            one = first.beside(int(table.indices[at]))
            found = None if change is None or change.missing[at] else float(change.values[at])
            told = {"dp": one.idx, "value": float(column.values[at]), "change": found}
            rows.append({**told, "label": one.label_text, "prediction": _prediction(one)})
        return answer(jsonable({"metric": metric, "rows": rows}))

    # ---- kept datapoints
    def captured(self, request: Request) -> Response:
        """The datapoints of an epoch that can be shown, whether they have scores or not."""
        selection = Selection.of(request.query_params, self._library)
        epoch = needed_epoch(selection.run, selection.epoch)
        first, n = whole(request.query_params, "first") or 0, whole(request.query_params, "n")
        n = 1000 if n is None else n
        if not 1 <= n <= MOST_CAPTURED or first < 0:
            raise Refusal(f"n={n} is not from 1 to {MOST_CAPTURED:,}, or first={first} is below 0")
        kept = Datapoint(selection.run, epoch, 0).kept()
        indices = reduce(np.union1d, kept.values())
        counts = {name: len(each) for name, each in kept.items()}
        page = indices[first : first + n].tolist()
        return answer({"epoch": epoch_name(epoch), "first": first, "of": len(indices), "indices": page, "kept": counts})

    # ---- pictures
    def image(self, request: Request) -> Response:
        query = request.query_params
        side = self._side(Selection.of(query, self._library))
        found = self._found(side.datapoint, query)
        page, zoom, span = whole(query, "page") or 0, whole(query, "zoom"), scales.wanted(query)
        view = View(page, zoom, overlay=query.get("overlay") == "1", span=span)
        against = self._against(query, side)
        tag = items.version(found.value, side.datapoint, found, overlay=view.overlay)
        other = None
        if against is not None:
            other = self._found(against.datapoint, query)
            tag += items.version(other.value, against.datapoint, other)
        fresh = query.get("v") == tag
        etag = f'"{tag}-{view.page}-{view.zoom}-{int(view.overlay)}-{":".join(map(repr, view.span or ()))}"'
        headers = {"ETag": etag, "Cache-Control": f"private, {'max-age=86400, immutable' if fresh else 'no-cache'}"}
        if etag in {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}:
            return Response(status_code=304, headers=headers)
        with self._drawing:
            try:
                if other is not None:
                    a, b = numbers_of(found.value), numbers_of(other.value)
                    if a is None or b is None:
                        raise ValueError("these two have no difference that can be drawn")
                    made = difference_picture(a, b, view).png()
                else:
                    made = picture(found.value, side.datapoint.about(found), view).png()
            except (ValueError, MemoryError) as e:  # `NotDrawn` is one
                raise Refusal(self._library.shown(str(e) or describe(e)), status=404) from None
        return Response(made, media_type="image/png", headers=headers)

    def _found(self, at: Datapoint, query: QueryParams) -> Found:
        found = at.find(query.get("item", ""))
        if found is None:
            raise Refusal("there is no such item here", hint="Reload the page of the datapoint.", status=404)
        return found

    def _against(self, query: QueryParams, side: _Side) -> _Side | None:
        if "vs_run" not in query:
            return None
        entry, run = self._library.entry(query["vs_run"]), self._library.run(query["vs_run"])
        renamed = QueryParams([("run", query["vs_run"]), ("epoch", query.get("vs_epoch", ""))])
        epoch = needed_epoch(run, Selection.of(renamed, self._library).epoch)
        idx = whole(query, "vs_dp")
        return _Side(entry, Datapoint(run, epoch, side.datapoint.idx if idx is None else idx))

    # ---- through time
    def time(self, request: Request) -> Response:
        query = request.query_params
        selection = Selection.of(query, self._library)
        idx, id = selection.needed_dp(), query.get("item", "")
        captured = [epoch for epoch in selection.run.epochs if epoch.holds("debugger") or epoch.holds("outputs")]
        strip: list[Json] = []
        before: tuple[_Side, Found] | None = None
        name = None
        for epoch in captured[-MOST_EPOCHS:]:
            side = _Side(selection.entry, Datapoint(selection.run, epoch, idx))
            try:
                found = side.datapoint.find(id)
            except EndoscopeError as e:
                message = self._library.shown(str(e))
                told = items.problem(side.datapoint, "debugger", None, message, str(side.entry.path))
                strip.append({"epoch": epoch_name(epoch), "item": told, "difference": None})
                continue
            if found is None:
                continue
            name = found.name
            step = _compared(side, found, *before) if before is not None else None
            strip.append({"epoch": epoch_name(epoch), "item": side.item(found), "difference": step})
            before = side, found
        if name is None:
            hint = "Only epochs that kept outputs or debug outputs have any."
            raise Refusal("no epoch of this run has such an item", hint=hint, status=404)
        scales.share([one["item"] for one in strip])
        left_out = len(captured) - MOST_EPOCHS
        note = f"the last {MOST_EPOCHS} of {len(captured):,} captured epochs" if left_out > 0 else None
        return answer(jsonable({"item": id, "name": name, "epochs": strip, "note": note}))

    # ---- side by side
    def compare(self, request: Request) -> Response:
        query = request.query_params
        mode = query.get("mode") or "success"
        if mode not in MODES:
            raise Refusal(f"mode={mode[:40]!r} is none", hint=f"There are {', '.join(MODES)}.")
        selection = Selection.of(query, self._library)
        left = self._side(selection)
        self._must_exist(left.datapoint)
        right, note, trouble = self._other(mode, selection, left, query)
        told: Json = {"mode": mode, "left": left.facts(selection.percentile), "right": None, "layers": []}
        told |= {"note": note, "problem": trouble}
        if right is not None:
            layers, problems = self._layers(left, right)
            told |= {
                "right": right.facts(selection.percentile),
                "layers": layers,
                "problem": " ".join(problems) or None,
            }
        return answer(jsonable(told))

    def _other(
        self, mode: str, selection: Selection, left: _Side, query: QueryParams
    ) -> tuple[_Side | None, str | None, str | None]:
        """The right side, how it was chosen, and why there is none."""
        at = left.datapoint
        other = whole(query, "other") if mode != "runs" and query.get("other") != "eval" else None
        if mode == "success":
            if other is not None:
                chosen = at.beside(other)
                self._must_exist(chosen)
                return _Side(left.entry, chosen), "Chosen by its index.", None
            metric = _metric(at.epoch, selection.metric) if at.epoch.scores is not None else None
            nearest = nearest_success(at.run, at.epoch, at.idx, metric, selection.percentile)
            if nearest.idx is None:
                return None, None, nearest.how
            return _Side(left.entry, at.beside(nearest.idx)), nearest.how, None
        if mode == "runs":
            if len(selection.runs) < 2:
                return None, None, "Choose two runs to see this datapoint in both."
            run = selection.runs[1]
            epoch = epoch_of(run, selection.epoch) or epoch_of(run)
            if epoch is None:
                return None, None, f"{selection.entries[1].name} has no epoch yet."
            asked = selection.epoch is None or epoch.number == selection.epoch or epoch.number is None
            note = None if asked else f"{selection.entries[1].name} has no epoch {selection.epoch}; this is its last."
            return _Side(selection.entries[1], Datapoint(run, epoch, at.idx)), note, None
        if other is not None:
            return _Side(left.entry, Datapoint(at.run, needed_epoch(at.run, other), at.idx)), None, None
        earlier = [e for e in at.run.epochs if _before(e, at.epoch) and (e.holds("debugger") or e.holds("outputs"))]
        if not earlier:
            return None, None, "No earlier epoch kept outputs or debug outputs; choose another epoch."
        return _Side(left.entry, Datapoint(at.run, earlier[-1], at.idx)), "The captured epoch before.", None

    def _layers(self, left: _Side, right: _Side) -> tuple[list[Json], list[str]]:
        """Items that both sides have, those that differ most first; and what could not be compared."""
        layers: list[tuple[float, Json]] = []
        problems: list[str] = []
        only = 0
        for section in ("outputs", "debugger"):
            mine, theirs = self._names(left, section, problems), self._names(right, section, problems)
            only += len(set(mine) ^ set(theirs)) if mine and theirs else 0
            for debugger in [name for name in mine if name in set(theirs)]:
                try:
                    there = {found.id: found for found in right.datapoint.items(section, debugger)}
                    for found in left.datapoint.items(section, debugger):
                        if found.id in there and not found.statement:
                            layers.append(_layer(left, found, right, there[found.id]))
                except EndoscopeError as e:
                    problems.append(self._library.shown(str(e)))
        if only:
            problems.append(f"{only} debuggers gave something on one side only.")
        layers.sort(key=lambda layer: -layer[0])
        return [layer for _, layer in layers], [*dict.fromkeys(problems)]

    def _names(self, side: _Side, section: str, problems: list[str]) -> list[str | None]:
        try:
            return [*side.datapoint.debuggers()] if section == "debugger" else [None]
        except EndoscopeError as e:
            problems.append(self._library.shown(str(e)))
            return []


def _layer(left: _Side, found: Found, right: _Side, other: Found) -> tuple[float, Json]:
    told: Json = {"id": found.id, "name": found.name, "debugger": found.debugger}
    told |= {"left": left.item(found), "right": right.item(other), "distance": None, "src": None, "scale": None}
    scales.share([told["left"], told["right"]])
    apart = _difference(found, other)
    if apart is None or apart.relative_l2 is None:
        return -1.0, told
    told["distance"] = {"relative_l2": apart.relative_l2, "cosine": apart.cosine, "over": _over(apart)}
    told["src"] = _difference_src(left, found, right, other)
    told["scale"] = scales.of_difference(apart) if told["src"] is not None else None
    return apart.relative_l2, told


def _compared(side: _Side, found: Found, before: _Side, earlier: Found) -> Json | None:
    apart = _difference(found, earlier)
    if apart is None:
        return None
    told: Json = {"mean_abs": apart.mean_abs, "max_abs": apart.max_abs, "over": _over(apart)}
    src = _difference_src(side, found, before, earlier)
    return {**told, "src": src, "scale": scales.of_difference(apart) if src is not None else None}


def _difference(found: Found, other: Found) -> Difference | None:
    a, b = numbers_of(found.value), numbers_of(other.value)
    return difference(a, b) if a is not None and b is not None else None


def _over(apart: Difference) -> str:
    if apart.compared == apart.of:
        return f"all {apart.of:,} values"
    return f"{apart.compared:,} of {apart.of:,} values, where both are finite"


def _difference_src(side: _Side, found: Found, against: _Side, other: Found) -> str | None:
    a, b = numbers_of(found.value), numbers_of(other.value)
    if a is None or b is None or not has_picture(a, b):
        return None
    version = items.version(found.value, side.datapoint, found) + items.version(other.value, against.datapoint, other)
    return "/api/image?" + urlencode({**side.query(), "item": found.id, **against.query("vs_"), "v": version})


# ---------------------------------------------------------------- scores
def scores_of(epoch: Epoch, idx: int, percentile: Fraction = ranking.PERCENTILE) -> list[Json]:
    """The scores of a datapoint: value, rank (1 is the worst), how many share it, of how many, whether it fails."""
    table = epoch.scores
    if table is None:
        return []
    at, known = int(np.searchsorted(table.indices, idx)), _is_among(idx, table.indices)
    told = []
    for name in table.values:
        direction = table.directions[name]
        column = ranking.column(table, name, direction, table.indices)
        made: Json = {"name": name, "direction": direction, "of": int((~column.missing).sum())}
        made |= {"value": None, "rank": None, "tied": 0, "fails": False}
        if known and not column.missing[at]:
            ranks = column.ranks()
            made |= {"value": float(column.values[at]), "rank": int(ranks[at]), "tied": int((ranks == ranks[at]).sum())}
            made["fails"] = bool(column.fails(percentile)[at])
        told.append(made)
    return told


def _is_among(idx: int, indices: NDArray[np.int64]) -> bool:
    at = int(np.searchsorted(indices, idx))
    return at < len(indices) and int(indices[at]) == idx


def _prediction(at: Datapoint) -> Json | None:
    found = at.prediction
    if found is None:
        return None
    return {
        "class": found.index,
        "name": at.class_text(found.index),
        "probability": found.probability,
        "how": found.how,
    }


def _metric(epoch: Epoch, wanted: str | None) -> str:
    table = epoch.scores
    names = [*table.values] if table is not None else []
    if wanted is None and names:
        return names[0]
    if wanted not in names:
        raise Refusal("this epoch has no such score", hint=f"It has {', '.join(names)}." if names else "", status=404)
    return wanted


def _scored_before(run: Run, epoch: Epoch) -> Epoch | None:
    return next((e for e in reversed(run.epochs) if _before(e, epoch) and e.holds(scores_name(e))), None)


def _before(one: Epoch, other: Epoch) -> bool:
    return one.number is not None and other.number is not None and one.number < other.number
