"""The addresses of datapoints: /api/datapoint, /api/worst, /api/captured and /api/image."""

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
from endoscope.render.pictures import Picture
from endoscope.render.plain import jsonable
from endoscope.render.registry import describe, picture
from endoscope.render.renderer import View
from endoscope.runs import Epoch, ranking
from endoscope.runs.datapoint import Datapoint, worst_datapoints
from endoscope.runs.datapoint_values import Item
from endoscope.viewer import items, scales
from endoscope.viewer.answers import Json, answer, encode, is_stored
from endoscope.viewer.differences import comparable, difference_picture
from endoscope.viewer.library import Library, Refusal
from endoscope.viewer.selection import Selection, epoch_name, integer, last_scored_before, needed_epoch
from endoscope.viewer.side import Side, metric_of, prediction_of

MAX_WORST = 200
MAX_CAPTURED = 10_000
_MAX_DRAWING = 4  # pictures drawn at the same time


def routes(library: Library) -> list[Route]:
    api = _Values(library)
    return [
        Route("/api/datapoint", api.datapoint),
        Route("/api/worst", api.worst),
        Route("/api/captured", api.captured),
        Route("/api/image", api.image),
    ]


class _Values:
    """Each request calls a method on its own thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._drawing = threading.BoundedSemaphore(_MAX_DRAWING)

    # ---- one datapoint
    def datapoint(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        side = Side.of(selection, self._library).needed()
        facts = jsonable(side.facts(selection.percentile))
        if request.query_params.get("form") != "lines":
            return answer({**facts, **self._contents(side)})
        lines = (encode(part()) + b"\n" for part in (lambda: facts, lambda: self._contents(side)))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _contents(self, side: Side) -> Json:
        """The values of a datapoint, which take longer to read than its scores."""
        at = side.datapoint
        sections = items.sections(at, side.address, str(side.entry.path), self._library.shown)
        try:
            notes: Mapping[str, Any] = at.notes()
        except EndoscopeError:
            notes = {}  # the section of debug outputs shows the damage
        return {"sections": sections, "notes": jsonable(notes)}

    # ---- worst datapoints
    def worst(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        n = integer(request.query_params, "n")
        n = 20 if n is None else n
        if not 1 <= n <= MAX_WORST:
            raise Refusal(f"n={n} is not from 1 to {MAX_WORST}")
        epoch = needed_epoch(selection.run, selection.epoch)
        if epoch.scores is None or not epoch.scores.values:
            return answer({"rows": []})
        metric = metric_of(epoch, selection.metric)
        return answer(jsonable({"metric": metric, "rows": _worst(epoch, metric, n)}))

    # ---- captured datapoints
    def captured(self, request: Request) -> Response:
        """The datapoints of an epoch that can be shown, whether they have scores or not."""
        selection = Selection.of(request.query_params, self._library)
        epoch = needed_epoch(selection.run, selection.epoch)
        first, n = integer(request.query_params, "first") or 0, integer(request.query_params, "n")
        n = 1000 if n is None else n
        if not 1 <= n <= MAX_CAPTURED or first < 0:
            raise Refusal(f"n={n} is not from 1 to {MAX_CAPTURED:,}, or first={first} is below 0")
        stored = Datapoint(selection.run, epoch, 0).stored()
        indices = reduce(np.union1d, stored.values())
        counts = {name: len(each) for name, each in stored.items()}
        page = indices[first : first + n].tolist()
        return answer({"epoch": epoch_name(epoch), "first": first, "of": len(indices), "indices": page, "kept": counts})

    # ---- pictures
    def image(self, request: Request) -> Response:
        query = request.query_params
        side = Side.of(Selection.of(query, self._library), self._library)
        item = _item(side, query)
        page, zoom, span = integer(query, "page") or 0, integer(query, "zoom"), scales.range_of(query)
        view = View(page, zoom, overlay=query.get("overlay") == "1", span=span)
        other_side = self._other_side(query, side)
        tag = items.version(side.datapoint, item, overlay=view.overlay)
        other = None
        if other_side is not None:
            other = _item(other_side, query)
            tag += items.version(other_side.datapoint, other)
        is_current = query.get("v") == tag  # this address will always give the same picture
        etag = f'"{tag}-{view.page}-{view.zoom}-{int(view.overlay)}-{":".join(map(repr, view.span or ()))}"'
        lifetime = "max-age=86400, immutable" if is_current else "no-cache"
        headers = {"ETag": etag, "Cache-Control": f"private, {lifetime}"}
        if is_stored(request, etag):
            return Response(status_code=304, headers=headers)
        with self._drawing:
            try:
                png = _drawn(side.datapoint, item, other, view, query.get("drawn", "")).png()
            except (ValueError, MemoryError) as e:  # `NotDrawn` is a ValueError
                raise Refusal(self._library.shown(str(e) or describe(e)), status=404) from None
        return Response(png, media_type="image/png", headers=headers)

    def _other_side(self, query: QueryParams, side: Side) -> Side | None:
        """The datapoint to subtract, where the query names one."""
        if "vs_run" not in query:
            return None
        pairs = [("run", query["vs_run"]), ("epoch", query.get("vs_epoch", "")), ("dp", query.get("vs_dp", ""))]
        selection = Selection.of(QueryParams(pairs), self._library)
        epoch = needed_epoch(selection.run, selection.epoch)
        idx = side.datapoint.idx if selection.dp is None else selection.dp
        return Side(selection.entry, self._library.datapoints.of(epoch, idx))


def _item(side: Side, query: QueryParams) -> Item:
    item = side.datapoint.find(query.get("item", ""))
    if item is None:
        raise Refusal("there is no such item", hint="Reload the page of the datapoint.", status=404)
    return item


def _drawn(at: Datapoint, item: Item, other: Item | None, view: View, form: str) -> Picture:
    """The picture of a value, or of its difference to another one."""
    if other is None:
        return picture(item.value, at.about(item), view)
    a, b = comparable(item.value), comparable(other.value)
    if a is None or b is None:
        raise ValueError("the difference of these two values cannot be drawn")
    return difference_picture(a, b, view, at.about(item), form)


def _worst(epoch: Epoch, metric: str, n: int) -> list[Json]:
    """The ``n`` datapoints with the worst scores, each with its change since the last scored epoch."""
    table = epoch.scores
    assert table is not None
    direction = table.directions[metric]
    column = ranking.column(table, metric, direction, table.indices)
    before = last_scored_before(epoch)
    change = None
    if before is not None:
        change = ranking.change(column, ranking.column(before.scores, metric, direction, table.indices))
    rows = []
    for at, one in worst_datapoints(epoch, column, n):
        since = None if change is None or change.missing[at] else float(change.values[at])
        row = {"dp": one.idx, "value": float(column.values[at]), "change": since}
        rows.append({**row, "label": one.label_text, "prediction": prediction_of(one)})
    return rows
