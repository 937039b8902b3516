"""One colour range for several pictures of the same value, so that equal colours mean equal numbers; and its query."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from endoscope.render import colours, sheets
from endoscope.render.pictures import Range
from endoscope.viewer.differences import Difference
from endoscope.viewer.library import Refusal

_MAPPED = ("channels", "heatmap", "attention")


def share(items: Sequence[dict[str, Any]]) -> None:
    """Give all pictures of a list of items one range, if they are of one form and drawn with our colour map.

    Changes ``range`` and ``src`` of their bodies; ``shared`` says that it was done. Items without a finite value take
    part with nothing; a renderer of the user's chooses its colours itself, and has no ``legend`` of ours.
    """
    drawn = [item for item in items if item["renderer"] != "problem"]
    if len(drawn) < 2 or len({item["renderer"] for item in drawn}) > 1 or drawn[0]["renderer"] not in _MAPPED:
        return
    if any(item["body"].get("legend") != colours.legend(colours.SEQUENTIAL) or item["stats"] is None for item in drawn):
        return
    spans = [item["body"]["range"] for item in drawn if item["stats"]["non_finite"] < item["stats"]["count"]]
    if not spans:
        return
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    for item in drawn:
        src = item["body"]["src"] + "&" + urlencode({"low": repr(low), "high": repr(high)})
        item["body"] |= {"range": [low, high], "src": src, "shared": True}


def wanted(query: QueryParams) -> Range | None:
    """The range that the address of a picture names."""
    if "low" not in query and "high" not in query:
        return None
    low, high = (_float(query, name) for name in ("low", "high"))
    if low > high:
        raise Refusal("low is above high")
    return low, high


def _float(query: QueryParams, name: str) -> float:
    text = query.get(name, "")
    number = len(text) <= 32 and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text)
    if not number or not math.isfinite(float(text)):
        raise Refusal(f"{name} is no number", hint="low and high name the range of the colours.")
    return float(text)


def of_difference(apart: Difference) -> dict[str, Any]:
    """The scale of a picture of a difference: zero in the middle, the largest difference at both ends."""
    odd = apart.compared < apart.of
    if apart.max_abs is None:
        return {**sheets.scale_of((0.0, 0.0), odd, colours.DIVERGING), "range": None}
    return sheets.scale_of((-apart.max_abs, apart.max_abs), odd, colours.DIVERGING)
