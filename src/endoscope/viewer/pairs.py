"""Pairs: one value on two sides, how far apart the two are, and the picture of their difference."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode

from endoscope.render.images import channels_first
from endoscope.runs.datapoint_values import Item
from endoscope.viewer import items, scales
from endoscope.viewer.answers import Json
from endoscope.viewer.differences import Difference, are_classes, comparable, difference, differing, has_picture
from endoscope.viewer.side import Side


class Compared(NamedTuple):
    """How far two values are apart."""

    share: float | None
    """Of places with another class; only for values whose numbers are classes."""
    difference: Difference | None
    """For all other values."""
    picture: Json
    """``src`` and ``scale``; both None without a picture."""

    @property
    def over(self) -> str:
        n, of = (self.difference.compared, self.difference.of) if self.difference is not None else (0, 0)
        return f"all {of:,} values" if n == of else f"{n:,} of {of:,} values, where both are finite"


def compare(side: Side, item: Item, other_side: Side, other: Item, form: str) -> Compared | None:
    """``form`` is the renderer of both, empty when they differ. None when the values cannot be compared."""
    a, b = comparable(item.value), comparable(other.value)
    if a is None or b is None:
        return None
    form = _layout(side, item, form)
    share = differing(a, b) if are_classes(form) else None
    apart = difference(a, b) if not are_classes(form) else None
    if share is None and apart is None:
        return None
    src, scale = None, None
    if has_picture(a, b):
        version = items.version(side.datapoint, item)
        version += items.version(other_side.datapoint, other)
        query = {**side.query(), "item": item.id, **other_side.query("vs_"), "drawn": form, "v": version}
        src = "/api/image?" + urlencode(query)
        if apart is not None:
            note = "mean over the channels" if form == "image" else None
            scale = {**scales.of_difference(apart), "note": note}
    return Compared(share, apart, {"src": src, "scale": scale})


def _layout(side: Side, item: Item, form: str) -> str:
    """The form in which a difference is laid out; an image with one channel has no layout of its own."""
    if form != "image":
        return form
    x = comparable(item.value)
    image = channels_first(x, side.datapoint.about(item)) if x is not None else None
    return form if image is not None and image.shape[0] > 1 else ""
