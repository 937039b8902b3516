"""Side: a datapoint of a run in one epoch, the addresses of its pictures, and its label, prediction and scores."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from urllib.parse import urlencode

import numpy as np

from endoscope.runs import Epoch, ranking
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import Item
from endoscope.viewer import items
from endoscope.viewer.answers import Json
from endoscope.viewer.library import Entry, Library, Refusal
from endoscope.viewer.selection import Selection, epoch_name, needed_epoch


@dataclass(frozen=True, slots=True)
class Side:
    """A datapoint, and the run it belongs to."""

    entry: Entry
    datapoint: Datapoint

    @classmethod
    def of(cls, selection: Selection, library: Library) -> Side:
        """The selected datapoint in the first selected run."""
        epoch = needed_epoch(selection.run, selection.epoch)
        return cls(selection.entry, library.datapoints.of(epoch, selection.needed_dp()))

    def needed(self) -> Side:
        """This side; `Refusal` when the epoch holds nothing of the datapoint."""
        if not self.exists:
            text = f"this epoch has no datapoint {self.datapoint.idx}"
            raise Refusal(text, hint="Choose one on the score map.", status=404)
        return self

    @property
    def exists(self) -> bool:
        return _has_scores(self.datapoint.epoch, self.datapoint.idx) or self.datapoint.is_stored

    def query(self, prefix: str = "") -> Json:
        at = self.datapoint
        return {f"{prefix}run": self.entry.id, f"{prefix}epoch": epoch_name(at.epoch), f"{prefix}dp": at.idx}

    def address(self, item: Item, version: str) -> str:
        return "/api/image?" + urlencode({**self.query(), "item": item.id, "v": version})

    def item(self, item: Item) -> Json:
        return items.item_json(self.datapoint, item, self.address, str(self.entry.path))

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
    prediction = at.prediction
    if prediction is None:
        return None
    named = {"class": prediction.index, "name": at.class_text(prediction.index)}
    return {**named, "probability": prediction.probability, "how": prediction.how}


def metric_of(epoch: Epoch, name: str | None) -> str:
    """The named score, or the epoch's first one; `Refusal` when the epoch does not have it."""
    table = epoch.scores
    names = [*table.values] if table is not None else []
    if name is None and names:
        return names[0]
    if name not in names:
        raise Refusal("this epoch has no such score", hint=f"It has {', '.join(names)}." if names else "", status=404)
    return name


def is_before(one: Epoch, other: Epoch) -> bool:
    return one.number is not None and other.number is not None and one.number < other.number


def _scores(of: Datapoint, percentile: Fraction) -> list[Json]:
    """Each score of a datapoint: value, rank (1 is the worst), how many share the rank, and whether it fails."""
    table = of.epoch.scores
    if table is None:
        return []
    at, known = int(np.searchsorted(table.indices, of.idx)), _has_scores(of.epoch, of.idx)
    labels = of.run.score_labels(table.values)
    scores = []
    for name in table.values:
        direction = table.directions[name]
        column = ranking.column(table, name, direction, table.indices)
        score: Json = {"name": name, "label": labels[name], "direction": direction, "of": int((~column.missing).sum())}
        place: Json = {"value": None, "rank": None, "tied": 0, "fails": False}
        if known and not column.missing[at]:
            rank, tied = column.place(at)
            fails = bool(column.fails(percentile)[at])
            place = {"value": float(column.values[at]), "rank": rank, "tied": tied, "fails": fails}
        scores.append({**score, **place})
    return scores


def _has_scores(epoch: Epoch, idx: int) -> bool:
    table = epoch.scores
    if table is None:
        return False
    at = int(np.searchsorted(table.indices, idx))
    return at < len(table.indices) and int(table.indices[at]) == idx
