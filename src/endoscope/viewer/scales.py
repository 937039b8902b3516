"""Scales: one colour range for several pictures of the same value, so that equal colours mean equal numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import itemgetter
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from endoscope.render import colours, sheets
from endoscope.render.pictures import Range
from endoscope.viewer.answers import Json
from endoscope.viewer.differences import Difference
from endoscope.viewer.library import Refusal

_MAPPED = ("channels", "heatmap", "attention")


def share(items: Sequence[Json]) -> None:
    """Give all pictures in a list of items one range, if they have the same form and use our colour map.

    Changes ``range`` and ``src`` of their bodies and sets ``shared``. Items without a finite value do not contribute to
    the range.
    """
    drawn = [item for item in items if item["renderer"] != "problem"]
    if len(set(map(itemgetter("renderer"), drawn))) != 1 or not all(map(_has_our_colours, drawn)):
        return
    ranges = [item["body"]["range"] for item in drawn if item["stats"]["non_finite"] < item["stats"]["count"]]
    if len(drawn) < 2 or not ranges:
        return
    lows, highs = zip(*ranges, strict=True)
    low, high = min(lows), max(highs)
    for item in drawn:
        src = item["body"]["src"] + "&" + urlencode({"low": repr(low), "high": repr(high)})
        item["body"] |= {"range": [low, high], "src": src, "shared": True}


def _has_our_colours(item: Json) -> bool:
    """False for a registered renderer that chooses its own colours: it has no legend of ours."""
    ours = item["body"].get("legend") == colours.legend(colours.SEQUENTIAL)
    return ours and item["renderer"] in _MAPPED and item["stats"] is not None


def range_of(query: QueryParams) -> Range | None:
    """The range in the address of a picture."""
    if "low" not in query and "high" not in query:
        return None
    low, high = (_float(query, name) for name in ("low", "high"))
    if low > high:
        raise Refusal("low is greater than high")
    return low, high


def _float(query: QueryParams, name: str) -> float:
    text = query.get(name, "")
    number = len(text) <= 32 and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text)
    if not number or not math.isfinite(float(text)):
        raise Refusal(f"{name} is not a number", hint="low and high are the ends of the colour range.")
    return float(text)


def of_difference(difference: Difference) -> Json:
    """The scale of a picture of a difference: zero in the middle, the largest difference at both ends."""
    has_non_finite = difference.compared < difference.of
    if difference.max_abs is None:
        return {**sheets.scale_of((0.0, 0.0), has_non_finite, colours.DIVERGING), "range": None}
    return sheets.scale_of((-difference.max_abs, difference.max_abs), has_non_finite, colours.DIVERGING)
