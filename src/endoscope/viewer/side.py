"""Side: a datapoint of a run in an epoch, with its addresses, and what is said of it: label, prediction, scores."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from urllib.parse import urlencode

import numpy as np

from endoscope.runs import Epoch, ranking
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import Found
from endoscope.viewer import items
from endoscope.viewer.library import Entry, Refusal, Selection, epoch_name, needed_epoch

Json = dict[str, Any]


class Side:
    """A datapoint, with the run's id for addresses."""

    def __init__(self, entry: Entry, datapoint: Datapoint) -> None:
        self.entry = entry
        self.datapoint = datapoint

    @classmethod
    def of(cls, selection: Selection) -> Side:
        epoch = needed_epoch(selection.run, selection.epoch)
        return cls(selection.entry, Datapoint(selection.run, epoch, selection.needed_dp()))

    def needed(self) -> Side:
        """This one; `Refusal` when the epoch has neither scores nor anything else of it."""
        if not self.is_there:
            text = f"this epoch has no datapoint {self.datapoint.idx}"
            raise Refusal(text, hint="Choose one on the score map.", status=404)
        return self

    @property
    def is_there(self) -> bool:
        return _has_scores(self.datapoint.epoch, self.datapoint.idx) or self.datapoint.is_kept

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
            "prediction": prediction_of(at),
            "scores": _scores(at, percentile),
        }


def prediction_of(at: Datapoint) -> Json | None:
    found = at.prediction
    if found is None:
        return None
    return {
        "class": found.index,
        "name": at.class_text(found.index),
        "probability": found.probability,
        "how": found.how,
    }


def metric_of(epoch: Epoch, wanted: str | None) -> str:
    """The score that is wanted, or the first one; `Refusal` when the epoch has it not."""
    table = epoch.scores
    names = [*table.values] if table is not None else []
    if wanted is None and names:
        return names[0]
    if wanted not in names:
        raise Refusal("this epoch has no such score", hint=f"It has {', '.join(names)}." if names else "", status=404)
    return wanted


def is_before(one: Epoch, other: Epoch) -> bool:
    return one.number is not None and other.number is not None and one.number < other.number


def _scores(of: Datapoint, percentile: Fraction) -> list[Json]:
    """The scores of a datapoint: value, rank (1 is the worst), how many share it, of how many, whether it fails."""
    table = of.epoch.scores
    if table is None:
        return []
    at, known = int(np.searchsorted(table.indices, of.idx)), _has_scores(of.epoch, of.idx)
    labels = of.run.score_labels(table.values)
    told = []
    for name in table.values:
        direction = table.directions[name]
        column = ranking.column(table, name, direction, table.indices)
        made: Json = {"name": name, "label": labels[name], "direction": direction, "of": int((~column.missing).sum())}
        made |= {"value": None, "rank": None, "tied": 0, "fails": False}
        if known and not column.missing[at]:
            rank, tied = column.place(at)
            made |= {"value": float(column.values[at]), "rank": rank, "tied": tied}
            made["fails"] = bool(column.fails(percentile)[at])
        told.append(made)
    return told


def _has_scores(epoch: Epoch, idx: int) -> bool:
    table = epoch.scores
    if table is None:
        return False
    at = int(np.searchsorted(table.indices, idx))
    return at < len(table.indices) and int(table.indices[at]) == idx
