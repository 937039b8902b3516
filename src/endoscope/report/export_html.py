"""The markup of an exported page: no script, one style sheet with the tones of the viewer, every text escaped."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from endoscope.render.pictures import Picture
from endoscope.render.registry import Body, Form
from endoscope.render.sheets import ordinal
from endoscope.report.html import Swatch, classes, data_address, number, scalar, text, tidy, tokens
from endoscope.report.shown import Shown, value_text
from endoscope.runs.ranking import Bools, Column

MOST_CELLS = 50_000
"""Cells of a score map picture."""
_CORNERED = 7  # pixels of a cell that has room for the corner of a failure
_MOST_PICTURE = 400_000  # bytes of one picture
_MOST_POINTS = 1000
_WIDTH, _HEIGHT = 320, 120

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 24px; background: var(--bg); color: var(--ink);
  font: 14px/20px var(--sans); }
h1, h2, h3, h4, p, figure, dl, dd { margin: 0; }
h1 { font-size: 20px; line-height: 28px; } h2 { font-size: 16px; line-height: 24px; margin-bottom: 8px; }
h3 { font-size: 13px; margin: 12px 0 4px; } h4 { font: 600 13px/20px var(--mono); color: var(--accent);
  margin: 12px 0 4px; }
section > * + h2 { margin-top: 28px; border-top: 1px solid var(--line); padding-top: 16px; }
a { color: var(--accent); }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px;
  margin: 16px 0; overflow-x: auto; }
.facts, .note, figcaption { color: var(--soft); font-size: 12.5px; line-height: 18px; overflow-wrap: anywhere; }
.facts b { font: 500 12.5px/18px var(--mono); color: var(--ink); }
.what { font: 12px/18px var(--mono); color: var(--faint); overflow-wrap: anywhere; }
.bad { color: var(--bad); }
.problem { color: var(--warn); overflow-wrap: anywhere; }
.flow { display: flex; flex-wrap: wrap; gap: 12px 28px; align-items: flex-start; }
.flow > * { min-width: 0; max-width: 100%; }
.pair { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: flex-start; }
img { display: block; max-width: 100%; height: auto; image-rendering: pixelated; margin: 4px 0; }
svg { display: block; overflow: visible; max-width: 100%; }
td svg { display: inline-block; vertical-align: -1px; margin-right: 4px; }
svg .line { fill: none; stroke: var(--accent); stroke-width: 1.6; } svg .dot, svg .bar { fill: var(--accent); }
svg .axis { stroke: var(--strong-line); }
table { border-collapse: collapse; font: 12.5px/20px var(--mono); }
th, td { text-align: left; padding: 2px 16px 2px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font: 500 12px/20px var(--sans); color: var(--faint); }
pre { margin: 4px 0; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 90ch; max-height: 24em;
  overflow: auto; font: 12.5px/18px var(--mono); }
"""


def _tones() -> tuple[str, str]:
    """The colours and faces of the viewer's own style sheet, light and dark."""
    css = (resources.files("endoscope.viewer") / "static" / "style.css").read_text("utf-8")
    light = re.search(r":root\s*\{(.*?)\n\}", css, re.DOTALL)
    dark = re.search(r"\[data-theme=\"dark\"\]\s*\{(.*?)\n\}", css, re.DOTALL)
    assert light is not None
    assert dark is not None
    return light[1], dark[1]


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document. Its policy lets it show its own style and pictures inside it, and nothing else."""
    light, dark = _tones()
    style = f":root {{{light}\n}}\n@media (prefers-color-scheme: dark) {{ :root {{{dark}\n}} }}{_RULES}"
    mark = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{mark}'; base-uri 'none'; form-action 'none'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><title>{text(title)}</title><style>{style}</style>'
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def facts(of: Mapping[str, Any]) -> str:
    said = (f"{text(name)} <b>{text(value_text(value))}</b>" for name, value in of.items())
    return f'<p class="facts">{" · ".join(said)}</p>'


def note(words: Any, kind: str = "note") -> str:
    return f'<p class="{kind}">{text(words)}</p>'


def table(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{_cell(one)}</td>' for one in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


class Link:
    """A cell that leads to another place of the page."""

    def __init__(self, words: Any, anchor: str) -> None:
        self.html = f'<a href="#{text(anchor)}">{text(words)}</a>'


def _cell(value: Any) -> str:
    return value.html if isinstance(value, (Link, Swatch)) else text(value_text(value))


# ---------------------------------------------------------------- pictures
def pictures(one: Shown) -> str:
    """What is seen of an item: alone and over the input, at one size, with the classes of a mask beside it."""
    if one.over is None or one.picture is None:
        drawn = "".join(_picture(made, one.alt) for _, made in one.pictures)
    else:
        size = one.picture.width, one.picture.height
        drawn = "".join(
            f"<figure>{_picture(made, f'{one.alt}, {caption}', size)}<figcaption>{text(caption)}</figcaption></figure>"
            for caption, made in one.pictures
        )
    listed = table(*classes(one.body)) if one.body.get("classes") else ""
    told = note("tokens: " + " · ".join(map(str, one.body["tokens"]))) if one.body.get("tokens") else ""
    return f'<div class="pair">{drawn}{listed}</div>{of_text(one.body)}{told}'


def _picture(made: Picture, words: str, size: tuple[int, int] | None = None) -> str:
    """A picture inside the page, shown at ``size``; a large one is shrunk, and says so."""
    png, step = made.png(), 1
    while len(png) > _MOST_PICTURE and max(made.width, made.height) > 64:
        step *= 2
        made = Picture(made.pixels[::2, ::2], made.table)
        png = made.png()
    said = note(f"shrunk: every {ordinal(step)} pixel, so that the page stays small") if step > 1 else ""
    width, height = size if size is not None else (made.width, made.height)
    return f"{_image(png, width, height, words)}{said}"


def _image(png: bytes, width: int, height: int, words: str) -> str:
    return f'<img alt="{text(words)}" width="{width}" height="{height}" src="{data_address(png)}">'


def score_map(column: Column, fails: Bools, words: str) -> str:
    """One cell a datapoint, worst first, in the colours of the viewer; failures have a dark corner."""
    order = column.worst_first()[:MOST_CELLS]
    values, missing, failing = column.values[order], column.missing[order], fails[order]
    size = max(3, min(22, int(math.sqrt(960 * 420 / max(len(order), 1)))))
    columns = min(len(order), 960 // size) or 1
    rows = -(-len(order) // columns)
    inner = size - (2 if size >= 8 else 1 if size >= 4 else 0)
    sheet = np.zeros((rows * size, columns * size, 4), np.uint8)
    colours = _map_colours(values, column.direction == "higher")
    for k in range(len(order)):
        top, left = k // columns * size, k % columns * size
        cell = sheet[top : top + inner, left : left + inner]
        if missing[k]:
            cell[[0, -1], :] = cell[:, [0, -1]] = (*_tone("map-missing"), 255)
        elif np.isnan(values[k]):
            hatched = np.add.outer(np.arange(inner), np.arange(inner)) % 4 < 2
            cell[hatched] = (*_tone("map-nan"), 255)
        elif np.isinf(values[k]):
            cell[:] = (*_tone("map-inf"), 255)
        else:
            cell[:] = (*colours[k], 255)
        corner = max(3, inner // 3) if inner >= _CORNERED else 0
        for y in range(corner if failing[k] else 0):
            cell[y, inner - corner + y :] = (28, 29, 31, 255)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "PNG", compress_level=6)
    left_out = len(column.values) - len(order)
    said = note(f"the worst {MOST_CELLS:,} of {len(column.values):,} datapoints are drawn") if left_out > 0 else ""
    if inner < _CORNERED and failing.any():
        said += note(f"the cells are too small for corners: the first {int(failing.sum()):,} are the failures")
    return f"{_image(file.getvalue(), columns * size, rows * size, words)}{said}"


def _map_colours(values: Any, higher: bool) -> Any:
    """Red, green, blue of each value, from good to bad between the least and the largest."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    with np.errstate(all="ignore"):
        at = np.clip(
            (np.nan_to_num(values, nan=low, posinf=high, neginf=low) / 2 - low / 2) / ((high / 2 - low / 2) or 1.0),
            0,
            1,
        )
    at = 1 - at if higher else at
    stops = np.array([_tone(f"map-{k}") for k in range(4)], float)
    return np.stack([np.interp(at * 3, range(4), stops[:, c]) for c in range(3)], 1).round().astype(np.uint8)


def _tone(name: str) -> tuple[int, int, int]:
    """A colour of the light style sheet; it is read on both grounds."""
    found = re.search(rf"--{name}:\s*#([0-9a-fA-F]{{6}})", _tones()[0])
    assert found is not None, name
    return int(found[1][:2], 16), int(found[1][2:4], 16), int(found[1][4:], 16)


# ---------------------------------------------------------------- lines
def line(values: Sequence[Any], *, dots: bool = False) -> str:
    """A curve over positions; what is not finite leaves a gap in it."""
    step = -(-len(values) // _MOST_POINTS) or 1
    points = [(k, _finite(values[k])) for k in range(0, len(values), step)]
    there = [value for _, value in points if value is not None]
    if not there:
        return note("no value is finite")
    low, high = min(there), max(there)
    across, span = _WIDTH / max(len(values) - 1, 1), (high / 2 - low / 2) or 1.0
    places = [(k * across, None if v is None else _HEIGHT * (1 - (v / 2 - low / 2) / span)) for k, v in points]
    path = ""
    pen = "M"
    for x, y in places:
        path += f"{pen}{x:.1f} {y:.1f}" if y is not None else ""
        pen = "M" if y is None else "L"
    marks = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places if y is not None)
    said = f"{value_text(low)} to {value_text(high)}" + (f"; every {ordinal(step)} value is drawn" if step > 1 else "")
    inside = f'<path class="line" d="{path}"/>{marks if dots or len(there) < 3 else ""}'
    return f"{_svg(inside)}{note(said)}"


def bars(counts: Sequence[int], edges: Sequence[Any]) -> str:
    most, width = max(counts, default=0) or 1, _WIDTH / max(len(counts), 1)
    drawn = (
        f'<rect class="bar" x="{k * width:.1f}" y="{_HEIGHT - n / most * _HEIGHT:.1f}" '
        f'width="{width * 0.9:.1f}" height="{n / most * _HEIGHT:.1f}"/>'
        for k, n in enumerate(counts)
    )
    ends = f"{value_text(number(edges[0]))} to {value_text(number(edges[-1]))}" if len(edges) else ""
    return f"{_svg(''.join(drawn))}{note(ends)}"


def _svg(inside: str) -> str:
    axis = f'<path class="axis" d="M0 {_HEIGHT + 4}H{_WIDTH}"/>'
    return f'<svg viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 10}" width="{_WIDTH}" height="{_HEIGHT}">{axis}{inside}</svg>'


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


# ---------------------------------------------------------------- bodies
def body(form: Form, made: Body) -> str:
    """What a renderer made, of forms without a picture."""
    if form == "table":
        return table(*tidy(made["columns"], made["rows"]))
    if form == "scalar":
        value, name = scalar(made)
        return f"<p><b>{value}</b>{name}</p>"
    if form == "text":
        return f"<pre>{text(made['text'])}</pre>"
    if form == "tokens":
        return f'<p class="what">{" · ".join(map(text, tokens(made)))}</p>'
    if form == "line":
        return "".join(
            f'<div class="what">{text(one.get("name") or "")}</div>{line(one["values"])}' for one in made["series"]
        )
    if form == "histogram":
        return bars(made["counts"], made["edges"])
    return note(made.get("message", "nothing to see"), "problem")


def of_text(made: Body) -> str:
    """What is not shown of a value, or shown otherwise."""
    said = []
    if isinstance(made.get("shown"), int) and made.get("of") not in (None, made["shown"]):
        said.append(f"{made['shown']:,} of {made['of']:,} shown")
    span = made.get("range")
    if span is not None:
        said.append(f"colours from {value_text(number(span[0]))} to {value_text(number(span[1]))}")
    if made.get("note"):
        said.append(str(made["note"]))
    return note("; ".join(said)) if said else ""
