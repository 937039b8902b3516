"""The addresses that compare values: /api/time, one value in all epochs, and /api/compare, two sides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.errors import EndoscopeError
from endoscope.render.plain import jsonable
from endoscope.render.renderer import PICTURES
from endoscope.runs import Epoch
from endoscope.runs.datapoint import NotShown
from endoscope.runs.datapoint_values import Item
from endoscope.viewer import items, scales
from endoscope.viewer.answers import Json, answer
from endoscope.viewer.layers import Layers
from endoscope.viewer.library import Entry, Library, Refusal
from endoscope.viewer.neighbours import nearest_success
from endoscope.viewer.pairs import Compared, compare
from endoscope.viewer.selection import Selection, epoch_name, epoch_of, integer, needed_epoch
from endoscope.viewer.side import Side, is_before, metric_of

MAX_EPOCHS = 100
"""Epochs of one datapoint through time."""
MAX_IN_HEAD = 2
"""Inputs, and pictures among the labels, at the head of each side."""
MODES = ("success", "runs", "epochs")


def routes(library: Library) -> list[Route]:
    api = _Comparisons(library)
    return [Route("/api/time", api.time), Route("/api/compare", api.compare)]


@dataclass(frozen=True, slots=True)
class _Other:
    """The right side: how it was chosen, or why there is none."""

    side: Side | None
    note: str | None = None
    problem: str | None = None


class _Comparisons:
    """Each request calls a method on its own thread."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def _side(self, entry: Entry, epoch: Epoch, idx: int) -> Side:
        return Side(entry, self._library.datapoints.of(epoch, idx))

    # ---- through time
    def time(self, request: Request) -> Response:
        selection = Selection.of(request.query_params, self._library)
        idx, id = selection.needed_dp(), request.query_params.get("item", "")
        captured = [epoch for epoch in selection.run.epochs if _is_captured(epoch)]
        strip: list[Json] = []
        before: tuple[Side, Item] | None = None
        for epoch in captured[-MAX_EPOCHS:]:
            side = self._side(selection.entry, epoch, idx)
            try:
                item = side.datapoint.find(id)
            except EndoscopeError as e:
                drawn, step = self._problem(side, e), None
            else:
                if item is None:
                    continue
                drawn = side.item(item)
                step = _step(compare(side, item, *before, drawn["renderer"]) if before is not None else None)
                before = side, item
            strip.append({"epoch": epoch_name(epoch), "item": drawn, "difference": step})
        if before is None:
            hint = "Only epochs with stored outputs or debug outputs have items."
            raise Refusal("no epoch of this run has this item", hint=hint, status=404)
        scales.share([one["item"] for one in strip])
        omitted = len(captured) - MAX_EPOCHS
        note = f"The last {MAX_EPOCHS} of {len(captured):,} captured epochs." if omitted > 0 else None
        return answer(jsonable({"item": id, "name": before[1].name, "epochs": strip, "note": note}))

    def _problem(self, side: Side, e: EndoscopeError) -> Json:
        return items.problem(side.datapoint, "debugger", None, self._library.shown(str(e)), str(side.entry.path))

    # ---- side by side
    def compare(self, request: Request) -> Response:
        query = request.query_params
        mode = query.get("mode") or "success"
        if mode not in MODES:
            raise Refusal(f"mode={mode[:40]!r} is not known", hint=f"There are {', '.join(MODES)}.")
        selection = Selection.of(query, self._library)
        left = Side.of(selection, self._library)
        if mode != "runs" or len(selection.runs) < 2:
            left.needed()
        if mode == "success":
            other = self._success(selection, left, _other_number(query))
        elif mode == "epochs":
            other = self._other_epoch(left, _other_number(query))
        else:
            other = self._other_run(selection, left)
        right = other.side
        if right is None:
            rest: Json = {"right": None, "layers": [], "problems": []}
        else:
            if not right.exists:
                left.needed()  # one of two runs may lack the datapoint
            layers = Layers(left, right, describe=lambda side, e: f"{_name(side, mode)}: {self._library.shown(str(e))}")
            rest = {"right": self._head(right, selection), "layers": layers.compare(), "problems": layers.problems}
        head = {"mode": mode, "left": self._head(left, selection), "note": other.note, "problem": other.problem}
        return answer(jsonable({**head, **rest}))

    def _head(self, side: Side, selection: Selection) -> Json:
        """The label, prediction and scores of a side, its first inputs, and the labels that are pictures."""
        inputs, inputs_problem = self._read(side, "inputs")
        labels, labels_problem = self._read(side, "labels", optional=True)
        pictures = (drawn for item in labels if (drawn := side.item(item))["renderer"] in PICTURES)
        return {
            **side.facts(selection.percentile),
            "inputs": [side.item(item) for item in inputs[:MAX_IN_HEAD]],
            "inputs_of": len(inputs),
            "inputs_problem": inputs_problem,
            "labels": [*islice(pictures, MAX_IN_HEAD)],
            "labels_problem": labels_problem,
        }

    def _read(self, side: Side, section: str, *, optional: bool = False) -> tuple[list[Item], str | None]:
        """The items of a section, and why they cannot be read."""
        try:
            return [item for item in side.datapoint.items(section) if not item.is_note], None
        except EndoscopeError as e:
            absent = optional and isinstance(e, NotShown)
            return [], None if absent else self._library.shown(str(e))

    def _success(self, selection: Selection, left: Side, idx: int | None) -> _Other:
        at = left.datapoint
        if idx is not None:
            return _Other(self._side(left.entry, at.epoch, idx).needed(), "Chosen by its index.")
        metric = metric_of(at.epoch, selection.metric) if at.epoch.scores is not None else None
        nearest = nearest_success(at, metric, selection.percentile)
        if nearest.idx is None:
            return _Other(None, problem=nearest.how)
        return _Other(self._side(left.entry, at.epoch, nearest.idx), nearest.how)

    def _other_run(self, selection: Selection, left: Side) -> _Other:
        if len(selection.runs) < 2:
            return _Other(None, problem="Choose two runs to see this datapoint in both.")
        entry, run = selection.entries[1], selection.runs[1]
        epoch = epoch_of(run, selection.epoch) or epoch_of(run)
        if epoch is None:
            return _Other(None, problem=f"{entry.name} has no epoch yet.")
        is_selected = selection.epoch is None or epoch.number == selection.epoch or epoch.number is None
        note = None if is_selected else f"{entry.name} has no epoch {selection.epoch}; this is its last."
        return _Other(self._side(entry, epoch, left.datapoint.idx), note)

    def _other_epoch(self, left: Side, number: int | None) -> _Other:
        at = left.datapoint
        if number is not None:
            return _Other(self._side(left.entry, needed_epoch(at.run, number), at.idx))
        earlier = [epoch for epoch in at.run.epochs if is_before(epoch, at.epoch) and _is_captured(epoch)]
        if not earlier:
            text = "No earlier epoch has stored outputs or debug outputs; choose another epoch."
            return _Other(None, problem=text)
        return _Other(self._side(left.entry, earlier[-1], at.idx), "The captured epoch before.")


def _step(compared: Compared | None) -> Json | None:
    """The difference to an earlier epoch."""
    if compared is None:
        return None
    if compared.difference is None:
        return {"differing": compared.share, **compared.picture}
    apart = compared.difference
    return {"mean_abs": apart.mean_abs, "max_abs": apart.max_abs, "over": compared.over, **compared.picture}


def _other_number(query: QueryParams) -> int | None:
    """The datapoint or the epoch that the query names for the right side."""
    return integer(query, "other") if query.get("other") != "eval" else None


def _is_captured(epoch: Epoch) -> bool:
    return epoch.holds("debugger") or epoch.holds("outputs")


def _name(side: Side, mode: str) -> str:
    """What distinguishes a side from the other one."""
    at = side.datapoint
    epoch = "Evaluation" if at.epoch.number is None else f"Epoch {at.epoch.number}"
    return {"runs": side.entry.name, "epochs": epoch, "success": f"Datapoint {at.idx}"}[mode]
