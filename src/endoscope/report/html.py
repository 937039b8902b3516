"""HTML: documents, tables, lines and bars, and every form that a value is drawn in.

One markup for exported pages and notebooks: classes and one style sheet, because the policy of a page forbids styles
of single elements. No script. Everything that comes from a run is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from endoscope.render.pictures import Picture
from endoscope.render.plain import cell, value_text
from endoscope.render.renderer import Body
from endoscope.render.sheets import ordinal
from endoscope.report.items import Shown

_MOST_PICTURE = 400_000  # bytes of one picture
_MOST_POINTS = 1000
_MOST_NOTES = 50  # of one kind
_WIDTH, _HEIGHT = 320, 120


# ---------------------------------------------------------------- documents
@cache
def _style() -> str:
    return (resources.files("endoscope.report") / "style.css").read_text("utf-8")


def document(title: str, parts: Iterable[str]) -> str:
    """A complete page. Its policy allows its own style and the pictures inside it, and nothing else."""
    mark = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{mark}'; base-uri 'none'; form-action 'none'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><title>{text(title)}</title><style>{_style()}</style>'
    )
    body = f'<body class="endoscope page">{"".join(parts)}</body>'
    return f'<!doctype html><html lang="en"><head>{head}</head>{body}</html>\n'


def fragment(parts: Iterable[str]) -> str:
    """A part of a notebook, with its style."""
    return f'<div class="endoscope"><style>{_style()}</style>{"".join(parts)}</div>'


# ---------------------------------------------------------------- text and tables
class Markup(str):
    """HTML that a table cell contains as it is."""


def text(value: Any) -> str:
    """Any text or number, escaped, without the surrogates that UTF-8 cannot hold."""
    return escape(str(value).encode(errors="replace").decode(), quote=True)


def note(words: Any, kind: str = "note") -> str:
    return f'<p class="{kind}">{text(words)}</p>'


def problems(words: Sequence[Any], most: int) -> str:
    """The first problems, and how many more there are."""
    more = [f"and {len(words) - most:,} more problems"] if len(words) > most else []
    return "".join(note(one, "problem") for one in [*words[:most], *more])


def facts(values: Mapping[str, Any]) -> str:
    """Names and values on one line."""
    pairs = (f"{text(name)} <b>{text(value_text(value))}</b>" for name, value in values.items())
    return f'<p class="facts">{" · ".join(pairs)}</p>'


def table(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _cell(value: Any) -> str:
    return value if isinstance(value, Markup) else text(value_text(value))


def link(words: Any, anchor: str) -> Markup:
    """A cell that links to another place on the page."""
    return Markup(f'<a href="#{text(anchor)}">{text(words)}</a>')


def swatch(colour: Any, words: Any) -> Markup:
    """A cell with a square of a colour before its words."""
    is_colour = re.fullmatch(r"#[0-9a-fA-F]{6}", str(colour)) is not None
    square = f'<rect width="12" height="12" fill="{colour}"/>' if is_colour else ""
    return Markup(f'<svg viewBox="0 0 12 12" width="12" height="12">{square}</svg> {_cell(words)}')


def tidy(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> tuple[list[Any], list[list[Any]]]:
    """A table without a column of names that only repeat the class.

    >>> tidy(["class", "name", "output"], [[1, "1", 0.5], [0, None, 2.0]])
    (['class', 'output'], [[1, 0.5], [0, 2.0]])
    """
    width = len(columns)
    full = [[*row, *[None] * (width - len(row))] for row in rows]  # a user's renderer may return short rows

    def repeats(k: int) -> bool:
        return columns[k] == "name" and all(row[k] is None or str(row[k]) == str(row[k - 1]) for row in full)

    used = [k for k in range(width) if k == 0 or not repeats(k)]
    return [columns[k] for k in used], [[row[k] for k in used] for row in full]


def debugger_notes(notes: Mapping[str, Any]) -> str:
    """The notes of a record: what is absent and why, failures, call counts."""
    entries = [(kind, entry) for kind, of_kind in notes.items() for entry in list(of_kind.items())[:_MOST_NOTES]]
    rows = [[cell(kind), cell(name), cell(value)] for kind, (name, value) in entries]
    return table(["note", "of", "value"], rows) if rows else ""


# ---------------------------------------------------------------- items
def item(one: Shown) -> str:
    """An item: its facts, what its renderer drew, and what is not shown of it."""
    if one.form == "problem":
        inside = note(one.body["message"], "problem")
    elif one.picture is not None:
        inside = _pictures(one)
    else:
        inside = _FORMS[one.form](one.body)
    return f'<div><div class="what">{text(" · ".join(one.facts))}</div>{inside}{_left_out(one.body)}</div>'


def _left_out(body: Body) -> str:
    parts = []
    if isinstance(body.get("shown"), int) and body.get("of") not in (None, body["shown"]):
        parts.append(f"{body['shown']:,} of {body['of']:,} shown")
    if body.get("range") is not None:
        low, high = map(value_text, body["range"])
        parts.append(f"colours from {low} to {high}")
    if body.get("note"):
        parts.append(str(body["note"]))
    return note("; ".join(parts)) if parts else ""


def _pictures(one: Shown) -> str:
    """Alone and over the input, at one size, with the classes of a mask or the tokens."""
    assert one.picture is not None
    size = (one.picture.width, one.picture.height)
    if one.over is None:
        drawn = picture(one.picture, one.alt, size)
    else:
        drawn = _figure(one.picture, one.alt, size, "alone") + _figure(one.over, one.alt, size, "over the input")
    classes = _classes(one.body["classes"]) if one.body.get("classes") else ""
    tokens = note("tokens: " + " · ".join(map(str, one.body["tokens"]))) if one.body.get("tokens") else ""
    return f'<div class="pair">{drawn}{classes}</div>{tokens}'


def _figure(drawn: Picture, alt: str, size: tuple[int, int], caption: str) -> str:
    inside = picture(drawn, f"{alt}, {caption}", size)
    return f"<figure>{inside}<figcaption>{text(caption)}</figcaption></figure>"


def picture(drawn: Picture, alt: str, size: tuple[int, int]) -> str:
    """A picture inside the page. A large one is shrunk, with a note."""
    png, step = drawn.png(), 1
    while len(png) > _MOST_PICTURE and max(drawn.width, drawn.height) > 64:
        step *= 2
        drawn = Picture(drawn.pixels[::2, ::2], drawn.table)
        png = drawn.png()
    shrunk = note(f"shrunk: every {ordinal(step)} pixel, so that the page stays small") if step > 1 else ""
    return f"{image(png, alt, size)}{shrunk}"


def image(png: bytes, alt: str, size: tuple[int, int]) -> str:
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    return f'<img alt="{text(alt)}" width="{size[0]}" height="{size[1]}" src="{source}">'


def _classes(classes: Sequence[Any]) -> str:
    """The classes of a mask, each with its colour."""
    known = [one for one in classes if isinstance(one, dict)]
    columns, rows = tidy(["class", "name"], [[one.get("index"), one.get("name")] for one in known])
    cells = [
        [swatch(one.get("colour"), index), *names, _share(one)]
        for one, (index, *names) in zip(known, rows, strict=True)
    ]
    return table([*columns, "share"], cells)


def _share(one: Body) -> str:
    share = one.get("share")
    return f"{100 * share:.1f} %" if isinstance(share, (int, float)) else "–"


# ---------------------------------------------------------------- forms without a picture
def _scalar(body: Body) -> str:
    value, name = body["value"], body.get("name")
    repeated = name is None or str(name) == str(value)
    return f"<p><b>{text(value_text(value))}</b>{'' if repeated else f' ({text(name)})'}</p>"


def _tokens(body: Body) -> str:
    """Ids with their texts, where they have any."""
    texts = body.get("tokens") or [None] * len(body["values"])
    pairs = zip(body["values"], texts, strict=False)
    words = (text(id) if word is None else text(f"{word} ({id})") for id, word in pairs)
    return f'<p class="what">{" · ".join(words)}</p>'


def _lines(body: Body) -> str:
    names = (f'<div class="what">{text(one.get("name") or "")}</div>' for one in body["series"])
    return "".join(name + line(one["values"]) for name, one in zip(names, body["series"], strict=True))


def line(values: Sequence[Any], *, dots: bool = False) -> str:
    """A curve over positions, with gaps where values are not finite."""
    step = max(1, -(-len(values) // _MOST_POINTS))
    y = np.array([*map(_finite, values[::step])])
    finite = np.isfinite(y)
    if not finite.any():
        return note("no value is finite")
    low, high = y[finite].min(), y[finite].max()
    x = np.arange(len(y)) * step * _WIDTH / max(len(values) - 1, 1)
    y = _HEIGHT * (1 - (y / 2 - low / 2) / ((high / 2 - low / 2) or 1.0))  # high - low may overflow
    joined = finite & np.r_[False, finite[:-1]]  # to the value before
    points = [("L" if joined[k] else "M", f"{x[k]:.1f}", f"{y[k]:.1f}") for k in np.flatnonzero(finite)]
    content = f'<path class="line" d="{"".join(f"{move}{at} {height}" for move, at, height in points)}"/>'
    if dots or len(points) < 3:
        content += "".join(f'<circle class="dot" cx="{at}" cy="{height}" r="2.5"/>' for _, at, height in points)
    skipped = f"; every {ordinal(step)} value is drawn" if step > 1 else ""
    return _svg(content) + note(f"{value_text(float(low))} to {value_text(float(high))}{skipped}")


def _finite(value: Any) -> float:
    """A number, or NaN for what a curve cannot show."""
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def _bars(body: Body) -> str:
    counts, edges = body["counts"], body["edges"]
    most, width = max(counts, default=0) or 1, _WIDTH / max(len(counts), 1)
    bars = (
        f'<rect class="bar" x="{k * width:.1f}" y="{_HEIGHT - n / most * _HEIGHT:.1f}" '
        f'width="{width * 0.9:.1f}" height="{n / most * _HEIGHT:.1f}"/>'
        for k, n in enumerate(counts)
    )
    ends = f"{value_text(edges[0])} to {value_text(edges[-1])}" if len(edges) else ""
    return _svg("".join(bars)) + note(ends)


def _svg(inside: str) -> str:
    axis = f'<path class="axis" d="M0 {_HEIGHT + 4}H{_WIDTH}"/>'
    return f'<svg viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 10}" width="{_WIDTH}" height="{_HEIGHT}">{axis}{inside}</svg>'


_FORMS = {
    "scalar": _scalar,
    "text": lambda body: f"<pre>{text(body['text'])}</pre>",
    "table": lambda body: table(*tidy(body["columns"], body["rows"])),
    "tokens": _tokens,
    "line": _lines,
    "histogram": _bars,
}
