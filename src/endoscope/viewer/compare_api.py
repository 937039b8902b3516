"""The addresses about one value beside another: /api/time, in all epochs, and /api/compare, on two sides."""

from __future__ import annotations

from itertools import islice
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.errors import EndoscopeError
from endoscope.render.images import channels_first
from endoscope.render.plain import jsonable
from endoscope.render.registry import PICTURES
from endoscope.runs.datapoint import Datapoint, NotShown
from endoscope.runs.datapoint_values import Found
from endoscope.viewer import items, scales
from endoscope.viewer.answers import answer
from endoscope.viewer.differences import Difference, are_classes, difference, differing, has_picture, numbers_of
from endoscope.viewer.library import Library, Refusal, Selection, epoch_name, epoch_of, needed_epoch, whole
from endoscope.viewer.neighbours import nearest_success
from endoscope.viewer.side import Json, Side, is_before, metric_of

MOST_EPOCHS = 100
"""Epochs of one datapoint through time."""
MOST_AT_HEAD = 2
"""Inputs, and pictures among the labels, that are shown at the head of each side."""
MODES = ("success", "runs", "epochs")


def routes(library: Library) -> list[Route]:
    api = _Comparisons(library)
    return [Route("/api/time", api.time), Route("/api/compare", api.compare)]


class _Comparisons:
    """Each method is called on a thread of its own."""

    def __init__(self, library: Library) -> None:
        self._library = library

    # ---- through time
    def time(self, request: Request) -> Response:
        query = request.query_params
        selection = Selection.of(query, self._library)
        idx, id = selection.needed_dp(), query.get("item", "")
        captured = [epoch for epoch in selection.run.epochs if epoch.holds("debugger") or epoch.holds("outputs")]
        strip: list[Json] = []
        before: tuple[Side, Found] | None = None
        name = None
        for epoch in captured[-MOST_EPOCHS:]:
            side = Side(selection.entry, Datapoint(selection.run, epoch, idx))
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
            item = side.item(found)
            step = _compared(item, side, found, *before) if before is not None else None
            strip.append({"epoch": epoch_name(epoch), "item": item, "difference": step})
            before = side, found
        if name is None:
            hint = "Only epochs that kept outputs or debug outputs have any."
            raise Refusal("no epoch of this run has such an item", hint=hint, status=404)
        scales.share([one["item"] for one in strip])
        left_out = len(captured) - MOST_EPOCHS
        note = f"The last {MOST_EPOCHS} of {len(captured):,} captured epochs." if left_out > 0 else None
        return answer(jsonable({"item": id, "name": name, "epochs": strip, "note": note}))

    # ---- side by side
    def compare(self, request: Request) -> Response:
        query = request.query_params
        mode = query.get("mode") or "success"
        if mode not in MODES:
            raise Refusal(f"mode={mode[:40]!r} is none", hint=f"There are {', '.join(MODES)}.")
        selection = Selection.of(query, self._library)
        left = Side.of(selection)
        if mode != "runs" or len(selection.runs) < 2:
            left.needed()
        right, note, trouble = _other(mode, selection, left, query)
        if right is not None and not right.is_there:
            left.needed()  # in one of two runs is enough
        told: Json = {"mode": mode, "left": self._head(left, selection), "right": None, "layers": []}
        told |= {"note": note, "problem": trouble, "problems": []}
        if right is not None:
            layers, problems = self._layers(mode, left, right)
            told |= {"right": self._head(right, selection), "layers": layers, "problems": problems}
        return answer(jsonable(told))

    def _head(self, side: Side, selection: Selection) -> Json:
        """What is said of a side, its first inputs, and what of its labels is a picture."""
        told: Json = {**side.facts(selection.percentile), "inputs": [], "inputs_of": 0, "inputs_problem": None}
        told |= {"labels": [], "labels_problem": None}
        try:
            found = [one for one in side.datapoint.items("inputs") if not one.statement]
            told |= {"inputs": [side.item(one) for one in found[:MOST_AT_HEAD]], "inputs_of": len(found)}
        except EndoscopeError as e:
            told["inputs_problem"] = self._library.shown(str(e))
        try:
            labels = (side.item(one) for one in side.datapoint.items("labels") if not one.statement)
            told["labels"] = [*islice((item for item in labels if item["renderer"] in PICTURES), MOST_AT_HEAD)]
        except NotShown:
            pass  # none were kept
        except EndoscopeError as e:
            told["labels_problem"] = self._library.shown(str(e))
        return told

    def _layers(self, mode: str, left: Side, right: Side) -> tuple[list[Json], list[str]]:
        """Items of either side, those that differ most first; and what could not be read."""
        layers: list[tuple[float, Json]] = []
        problems: list[str] = []
        for section in ("outputs", "debugger"):
            names = [self._names(side, section, mode, problems) for side in (left, right)]
            for debugger in dict.fromkeys([*names[0], *names[1]]):
                sides = [(left, debugger in names[0]), (right, debugger in names[1])]
                found = [self._items(side, section, debugger, mode, problems) if has else {} for side, has in sides]
                mine, theirs = found
                unread = [side for side, items in (("left", mine), ("right", theirs)) if items is None]
                for id in dict.fromkeys([*(mine or {}), *(theirs or {})]):
                    order, told = _layer(left, (mine or {}).get(id), right, (theirs or {}).get(id))
                    layers.append((order, {**told, "unread": unread}))
        layers.sort(key=lambda layer: -layer[0])
        return [layer for _, layer in layers], [*dict.fromkeys(problems)]

    def _names(self, side: Side, section: str, mode: str, problems: list[str]) -> list[str | None]:
        """The debuggers of a side; None stands for the section itself, where it has none."""
        try:
            return [*side.datapoint.debuggers()] if section == "debugger" else [None]
        except EndoscopeError as e:
            problems.append(self._problem(side, mode, e))
            return []

    def _items(
        self, side: Side, section: str, debugger: str | None, mode: str, problems: list[str]
    ) -> dict[str, Found] | None:
        """By their ids; none where none was kept, None where they cannot be read."""
        try:
            return {one.id: one for one in side.datapoint.items(section, debugger) if not one.statement}
        except NotShown as e:
            problems.append(self._problem(side, mode, e))
            return {}
        except EndoscopeError as e:
            problems.append(self._problem(side, mode, e))
            return None

    def _problem(self, side: Side, mode: str, error: EndoscopeError) -> str:
        """The text of an error, with the side it is of."""
        at = side.datapoint
        epoch = "Evaluation" if at.epoch.number is None else f"Epoch {at.epoch.number}"
        which = {"runs": side.entry.name, "epochs": epoch, "success": f"Datapoint {at.idx}"}[mode]
        return f"{which}: {self._library.shown(str(error))}"


def _other(
    mode: str, selection: Selection, left: Side, query: QueryParams
) -> tuple[Side | None, str | None, str | None]:
    """The right side, how it was chosen, and why there is none."""
    at = left.datapoint
    other = whole(query, "other") if mode != "runs" and query.get("other") != "eval" else None
    if mode == "success":
        if other is not None:
            return Side(left.entry, at.beside(other)).needed(), "Chosen by its index.", None
        metric = metric_of(at.epoch, selection.metric) if at.epoch.scores is not None else None
        nearest = nearest_success(at.run, at.epoch, at.idx, metric, selection.percentile)
        if nearest.idx is None:
            return None, None, nearest.how
        return Side(left.entry, at.beside(nearest.idx)), nearest.how, None
    if mode == "runs":
        if len(selection.runs) < 2:
            return None, None, "Choose two runs to see this datapoint in both."
        run = selection.runs[1]
        epoch = epoch_of(run, selection.epoch) or epoch_of(run)
        if epoch is None:
            return None, None, f"{selection.entries[1].name} has no epoch yet."
        asked = selection.epoch is None or epoch.number == selection.epoch or epoch.number is None
        note = None if asked else f"{selection.entries[1].name} has no epoch {selection.epoch}; this is its last."
        return Side(selection.entries[1], Datapoint(run, epoch, at.idx)), note, None
    if other is not None:
        return Side(left.entry, Datapoint(at.run, needed_epoch(at.run, other), at.idx)), None, None
    earlier = [e for e in at.run.epochs if is_before(e, at.epoch) and (e.holds("debugger") or e.holds("outputs"))]
    if not earlier:
        return None, None, "No earlier epoch kept outputs or debug outputs; choose another epoch."
    return Side(left.entry, Datapoint(at.run, earlier[-1], at.idx)), "The captured epoch before.", None


def _layer(left: Side, mine: Found | None, right: Side, theirs: Found | None) -> tuple[float, Json]:
    """A value of both sides, or of one of them, and how far apart they are."""
    found = mine or theirs
    assert found is not None
    told: Json = {"id": found.id, "name": found.name, "debugger": found.debugger}
    told |= {"left": left.item(mine) if mine else None, "right": right.item(theirs) if theirs else None}
    told |= {"distance": None, "src": None, "scale": None}
    if mine is None or theirs is None:
        return -2.0, told
    scales.share([told["left"], told["right"]])
    form = _form(told["left"], left, mine) if told["left"]["renderer"] == told["right"]["renderer"] else ""
    if are_classes(form):
        share = _differing(mine, theirs)
        if share is None:
            return -1.0, told
        told |= {"distance": {"differing": share}, "src": _difference_src(left, mine, right, theirs, form)}
        return share, told
    apart = _difference(mine, theirs)
    if apart is None or apart.relative_l2 is None:
        return -1.0, told
    told["distance"] = {"relative_l2": apart.relative_l2, "cosine": apart.cosine, "over": _over(apart)}
    told["src"] = _difference_src(left, mine, right, theirs, form)
    told["scale"] = _difference_scale(apart, form) if told["src"] is not None else None
    return apart.relative_l2, told


def _form(item: Json, side: Side, found: Found) -> str:
    """The form of both sides, as their difference is laid out; that of an image only where it has several channels."""
    form: str = item["renderer"]
    if form == "image":
        x = numbers_of(found.value)
        image = channels_first(x, side.datapoint.about(found)) if x is not None else None
        return form if image is not None and image.shape[0] > 1 else ""
    return form


def _difference_scale(apart: Difference, form: str) -> Json:
    """The scale of a picture of a difference, and what that is where it is not plain."""
    note = "mean over the channels" if form == "image" else None
    return {**scales.of_difference(apart), "note": note}


def _differing(found: Found, other: Found) -> float | None:
    a, b = numbers_of(found.value), numbers_of(other.value)
    return differing(a, b) if a is not None and b is not None else None


def _compared(item: Json, side: Side, found: Found, before: Side, earlier: Found) -> Json | None:
    """The difference to an earlier epoch."""
    form = _form(item, side, found)
    if are_classes(form):
        share = _differing(found, earlier)
        src = _difference_src(side, found, before, earlier, form)
        return {"differing": share, "src": src, "scale": None} if share is not None else None
    apart = _difference(found, earlier)
    if apart is None:
        return None
    told: Json = {"mean_abs": apart.mean_abs, "max_abs": apart.max_abs, "over": _over(apart)}
    src = _difference_src(side, found, before, earlier, form)
    return {**told, "src": src, "scale": _difference_scale(apart, form) if src is not None else None}


def _difference(found: Found, other: Found) -> Difference | None:
    a, b = numbers_of(found.value), numbers_of(other.value)
    return difference(a, b) if a is not None and b is not None else None


def _over(apart: Difference) -> str:
    if apart.compared == apart.of:
        return f"all {apart.of:,} values"
    return f"{apart.compared:,} of {apart.of:,} values, where both are finite"


def _difference_src(side: Side, found: Found, against: Side, other: Found, form: str) -> str | None:
    a, b = numbers_of(found.value), numbers_of(other.value)
    if a is None or b is None or not has_picture(a, b):
        return None
    version = items.version(found.value, side.datapoint, found) + items.version(other.value, against.datapoint, other)
    query = {**side.query(), "item": found.id, **against.query("vs_"), "drawn": form, "v": version}
    return "/api/image?" + urlencode(query)
