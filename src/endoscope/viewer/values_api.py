"""The addresses about datapoints: /api/datapoint, /api/worst, /api/captured and /api/image."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from endoscope.errors import EndoscopeError
from endoscope.render.plain import jsonable
from endoscope.render.registry import View, describe, picture
from endoscope.runs import Epoch, Run, ranking
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import Found
from endoscope.viewer import items, scales
from endoscope.viewer.answers import answer, encode
from endoscope.viewer.differences import difference_picture, numbers_of
from endoscope.viewer.library import Library, Refusal, Selection, epoch_name, needed_epoch, scores_name, whole
from endoscope.viewer.side import Json, Side, is_before, metric_of, prediction_of

MOST_WORST = 200
MOST_CAPTURED = 10_000
_AT_ONCE = 4  # pictures that are drawn at the same time


def routes(library: Library) -> list[Route]:
    api = _Values(library)
    return [
        Route("/api/datapoint", api.datapoint),
        Route("/api/worst", api.worst),
        Route("/api/captured", api.captured),
        Route("/api/image", api.image),
    ]


class _Values:
    """Each method is called on a thread of its own."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._drawing = threading.BoundedSemaphore(_AT_ONCE)

    # ---- one datapoint
    def datapoint(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        side = Side.of(selection).needed()
        facts = jsonable(side.facts(selection.percentile))
        if request.query_params.get("form") != "lines":
            return answer({**facts, **self._inside(side)})
        lines = (encode(part()) + b"\n" for part in (lambda: facts, lambda: self._inside(side)))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _inside(self, side: Side) -> Json:
        """The values of a datapoint, which take longer than what is said of it."""
        at = side.datapoint
        sections = items.sections(at, side.address, str(side.entry.path), self._library.shown)
        try:
            notes: Mapping[str, Any] = at.notes()
        except EndoscopeError:
            notes = {}  # the section of debug outputs says what is damaged
        return {"sections": sections, "notes": jsonable(notes)}

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
        metric = metric_of(epoch, selection.metric)
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
            rows.append({**told, "label": one.label_text, "prediction": prediction_of(one)})
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
        side = Side.of(Selection.of(query, self._library))
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
                    made = difference_picture(a, b, view, side.datapoint.about(found), query.get("drawn", "")).png()
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

    def _against(self, query: QueryParams, side: Side) -> Side | None:
        if "vs_run" not in query:
            return None
        entry, run = self._library.entry(query["vs_run"]), self._library.run(query["vs_run"])
        renamed = QueryParams([("run", query["vs_run"]), ("epoch", query.get("vs_epoch", ""))])
        epoch = needed_epoch(run, Selection.of(renamed, self._library).epoch)
        idx = whole(query, "vs_dp")
        return Side(entry, Datapoint(run, epoch, side.datapoint.idx if idx is None else idx))


def _scored_before(run: Run, epoch: Epoch) -> Epoch | None:
    return next((e for e in reversed(run.epochs) if is_before(e, epoch) and e.holds(scores_name(e))), None)
