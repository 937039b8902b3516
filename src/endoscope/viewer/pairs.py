"""Pair: one value on two sides, how far apart the two are, and the picture of their difference."""

from __future__ import annotations

from functools import cached_property
from urllib.parse import urlencode

from endoscope.render.images import channels_first
from endoscope.render.numbers import Numbers
from endoscope.runs.datapoint_values import Found
from endoscope.viewer import items, scales
from endoscope.viewer.answers import Json
from endoscope.viewer.differences import Difference, are_classes, difference, differing, has_picture, numbers_of
from endoscope.viewer.side import Side


class Pair:
    """The value of an item on one side, and on another."""

    def __init__(self, side: Side, found: Found, other_side: Side, other: Found, *, form: str) -> None:
        """``form`` is the renderer of both; empty when they differ."""
        self._side = side
        self._found = found
        self._other_side = other_side
        self._other = other
        self._form = form

    @cached_property
    def _numbers(self) -> tuple[Numbers, Numbers] | None:
        a, b = numbers_of(self._found.value), numbers_of(self._other.value)
        return (a, b) if a is not None and b is not None else None

    @property
    def are_classes(self) -> bool:
        return are_classes(self._form)

    @cached_property
    def differing(self) -> float | None:
        """The share of places with another class; None when the shapes differ."""
        return differing(*self._numbers) if self._numbers is not None else None

    @cached_property
    def difference(self) -> Difference | None:
        return difference(*self._numbers) if self._numbers is not None else None

    @cached_property
    def src(self) -> str | None:
        """The address of the picture of the difference."""
        if self._numbers is None or not has_picture(*self._numbers):
            return None
        version = items.version(self._found.value, self._side.datapoint, self._found)
        version += items.version(self._other.value, self._other_side.datapoint, self._other)
        query = {**self._side.query(), "item": self._found.id, **self._other_side.query("vs_")}
        return "/api/image?" + urlencode({**query, "drawn": self._layout, "v": version})

    @cached_property
    def _layout(self) -> str:
        """The form in which the difference is laid out; an image with one channel has no layout of its own."""
        if self._form != "image":
            return self._form
        x = numbers_of(self._found.value)
        image = channels_first(x, self._side.datapoint.about(self._found)) if x is not None else None
        return "image" if image is not None and image.shape[0] > 1 else ""

    @property
    def scale(self) -> Json | None:
        """The scale of the picture."""
        if self.difference is None or self.src is None:
            return None
        note = "mean over the channels" if self._layout == "image" else None
        return {**scales.of_difference(self.difference), "note": note}

    def step(self) -> Json | None:
        """The difference to an earlier epoch."""
        if self.are_classes:
            share = self.differing
            return {"differing": share, "src": self.src, "scale": None} if share is not None else None
        apart = self.difference
        if apart is None:
            return None
        numbers = {"mean_abs": apart.mean_abs, "max_abs": apart.max_abs, "over": _over(apart)}
        return {**numbers, "src": self.src, "scale": self.scale}

    def distance(self) -> tuple[float, Json] | None:
        """How far apart the two are, as a number to sort by and as JSON; None when they cannot be compared."""
        if self.are_classes:
            share = self.differing
            if share is None:
                return None
            return share, {"distance": {"differing": share}, "src": self.src, "scale": None}
        apart = self.difference
        if apart is None or apart.relative_l2 is None:
            return None
        distance = {"relative_l2": apart.relative_l2, "cosine": apart.cosine, "over": _over(apart)}
        return apart.relative_l2, {"distance": distance, "src": self.src, "scale": self.scale}


def _over(apart: Difference) -> str:
    if apart.compared == apart.of:
        return f"all {apart.of:,} values"
    return f"{apart.compared:,} of {apart.of:,} values, where both are finite"
