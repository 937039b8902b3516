"""Layers: the outputs and debug outputs of two sides, the values that differ most first."""

from __future__ import annotations

from collections.abc import Callable

from endoscope.errors import EndoscopeError
from endoscope.runs.datapoint import NotShown
from endoscope.runs.datapoint_values import Item
from endoscope.viewer import scales
from endoscope.viewer.answers import Json
from endoscope.viewer.pairs import Compared, compare
from endoscope.viewer.side import Side

_NOT_COMPARABLE, _ON_ONE_SIDE = -1.0, -2.0  # sorted after every distance
_NO_DISTANCE: Json = {"distance": None, "src": None, "scale": None}

Items = dict[str, Item]


class Layers:
    """Compares two sides; `problems` then lists what is missing or damaged."""

    def __init__(self, left: Side, right: Side, *, describe: Callable[[Side, EndoscopeError], str]) -> None:
        self._left = left
        self._right = right
        self._describe = describe
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> list[str]:
        return [*self._problems]

    def compare(self) -> list[Json]:
        layers: list[tuple[float, Json]] = []
        for section in ("outputs", "debugger"):
            on_left, on_right = self._names(self._left, section), self._names(self._right, section)
            for debugger in dict.fromkeys([*on_left, *on_right]):
                left = self._items(self._left, section, debugger) if debugger in on_left else {}
                right = self._items(self._right, section, debugger) if debugger in on_right else {}
                layers += self._compare_items(left, right)
        layers.sort(key=lambda layer: -layer[0])
        return [layer for _, layer in layers]

    def _names(self, side: Side, section: str) -> list[str | None]:
        """The debuggers of a side; None stands for a section that has no debuggers."""
        try:
            return [*side.datapoint.debuggers()] if section == "debugger" else [None]
        except EndoscopeError as e:
            self._note(side, e)
            return []

    def _items(self, side: Side, section: str, debugger: str | None) -> Items | None:
        """By their ids; empty when nothing is stored, None when they cannot be read."""
        try:
            return {item.id: item for item in side.datapoint.items(section, debugger) if not item.is_note}
        except EndoscopeError as e:
            self._note(side, e)
            return {} if isinstance(e, NotShown) else None

    def _note(self, side: Side, e: EndoscopeError) -> None:
        self._problems[self._describe(side, e)] = None

    def _compare_items(self, left: Items | None, right: Items | None) -> list[tuple[float, Json]]:
        unread = [name for name, items in (("left", left), ("right", right)) if items is None]
        left, right = left or {}, right or {}
        layers = []
        for id in dict.fromkeys([*left, *right]):
            order, layer = self._compare_item(left.get(id), right.get(id))
            layers.append((order, {**layer, "unread": unread}))
        return layers

    def _compare_item(self, mine: Item | None, theirs: Item | None) -> tuple[float, Json]:
        """A value of both sides, or of one of them, with its place in the order."""
        item = mine or theirs
        assert item is not None
        left = self._left.item(mine) if mine is not None else None
        right = self._right.item(theirs) if theirs is not None else None
        layer = {"id": item.id, "name": item.name, "debugger": item.debugger, "left": left, "right": right}
        if mine is None or theirs is None or left is None or right is None:
            return _ON_ONE_SIDE, {**layer, **_NO_DISTANCE}
        scales.share([left, right])
        form = left["renderer"] if left["renderer"] == right["renderer"] else ""
        order, distance = _distance(compare(self._left, mine, self._right, theirs, form))
        return order, {**layer, **distance}


def _distance(compared: Compared | None) -> tuple[float, Json]:
    """How far two values are apart: a number to sort by, and the distance in JSON."""
    if compared is not None and compared.share is not None:
        return compared.share, {"distance": {"differing": compared.share}, **compared.picture}
    apart = compared.difference if compared is not None else None
    if compared is None or apart is None or apart.relative_l2 is None:
        return _NOT_COMPARABLE, _NO_DISTANCE
    distance = {"relative_l2": apart.relative_l2, "cosine": apart.cosine, "over": compared.over}
    return apart.relative_l2, {"distance": distance, **compared.picture}
