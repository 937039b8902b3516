"""Sheets of tiles: many small maps in one picture, page by page, with one colour range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.render import colours, pictures
from endoscope.render.colours import Table
from endoscope.render.numbers import Array, Numbers, finite_range, statistics
from endoscope.render.pictures import Picture, Range
from endoscope.render.renderer import Body, View
from endoscope.render.shapes import Maps

TILES = 64
"""Tiles per page."""
GAP = 2
_TILE = 64  # pixels of a tile's longer side to which small maps are enlarged
_MOST_TILE = 128
_SHEET = 1100  # pixels of a sheet's width


def span_of(x: Numbers) -> tuple[Range, bool]:
    """The range of the finite values, and whether there are non-finite ones."""
    low, high = finite_range(x) or (0.0, 0.0)
    return (float(low), float(high)), statistics(x).non_finite > 0


def scale_of(span: Range, non_finite: bool, table: Table) -> dict[str, Any]:
    """What a page needs to draw the scale of a picture."""
    scale: dict[str, Any] = {"range": list(span), "legend": colours.legend(table)}
    if non_finite:
        scale |= {"nan_colour": colours.css(colours.NAN), "inf_colour": colours.css(colours.INF)}
    return scale


@dataclass(frozen=True, slots=True)
class Sheet:
    """How the tiles of a page are laid out."""

    step: int
    factor: int
    tile: tuple[int, int]
    """Width and height."""
    columns: int

    @classmethod
    def of(cls, maps: Maps, tile: int = _TILE, most: int = _MOST_TILE) -> Sheet:
        height, width = maps.x.shape[-2:]
        step = pictures.step_for((height, width), most)
        height, width = -(-height // step), -(-width // step)
        factor = pictures.factor_for((height, width), tile)
        shown = width * factor, height * factor
        # From all maps, not from those of one page: the last page has the same columns as the others.
        columns = max(1, min(maps.count, 8, (_SHEET + GAP) // (shown[0] + GAP)))
        return cls(step, factor, shown, columns)


def tiles_body(maps: Maps, sheet: Sheet, what: str) -> Body:
    """The body of a sheet: layout, range, and a note of what is not shown."""
    span, non_finite = span_of(maps.x)
    shown = min(TILES, maps.count)
    notes = [maps.note] if maps.note else []
    if shown < maps.count:
        notes.append(f"{shown} of {maps.count:,} {what} at once")
    if sheet.step > 1:
        notes.append(f"every {ordinal(sheet.step)} pixel of each")
    return {
        "columns": sheet.columns,
        "rows": -(-shown // sheet.columns),
        "tile": list(sheet.tile),
        "gap": GAP,
        "shown": shown,
        "of": maps.count,
        "pages": -(-maps.count // TILES),
        **scale_of(span, non_finite, colours.SEQUENTIAL),
        "note": "; ".join(notes) or None,
    }


def tiles_picture(
    maps: Maps, sheet: Sheet, view: View, span: Range | None = None, table: Table | None = None
) -> Picture:
    """One page of tiles, or one map alone."""
    span = span or view.span or span_of(maps.x)[0]
    table = colours.SEQUENTIAL if table is None else table
    if view.zoom is not None:
        return _zoomed(maps, view.zoom, span, table)
    first = view.page * TILES
    if not 0 <= first < maps.count:
        raise ValueError(f"there is no page {view.page}; there are {-(-maps.count // TILES)}, counted from 0")
    values = _part(maps, slice(first, min(first + TILES, maps.count)), sheet.step)
    places = pictures.mapped(values, span)
    places = places.repeat(sheet.factor, 1).repeat(sheet.factor, 2)
    return Picture(pictures.tiled(places, sheet.columns, GAP), table)


def _zoomed(maps: Maps, index: int, span: Range, table: Table) -> Picture:
    if not 0 <= index < maps.count:
        raise ValueError(f"there is no map {index}; there are {maps.count}, counted from 0")
    step = pictures.step_for(maps.x.shape[-2:], pictures.MOST_PIXELS)
    values = _part(maps, slice(index, index + 1), step)[0]
    factor = pictures.factor_for(values.shape, 512)
    return Picture(pictures.enlarged(pictures.mapped(values, span), factor), table)


def _part(maps: Maps, which: slice, step: int) -> Array:
    index: tuple[Any, ...] = (which, slice(None, None, step), slice(None, None, step))
    if maps.middle is not None:
        index = (which, maps.middle, *index[1:])
    return np.asarray(maps.x.take(index))


def ordinal(n: int) -> str:
    """
    >>> ordinal(2), ordinal(13), ordinal(21)
    ('2nd', '13th', '21st')
    """
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
