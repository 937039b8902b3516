"""Items as HTML that needs nothing else: for notebooks and files. Everything that comes from a run is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from endoscope.render.plain import cell
from endoscope.render.registry import Body, Form
from endoscope.report.shown import Shown, value_text

_WIDTH, _HEIGHT = 480, 120
_MOST_POINTS = 512

STYLE = (
    "font:13px/1.5 system-ui,sans-serif;max-width:1100px",
    "font:12px ui-monospace,monospace;opacity:.7",
    "border-collapse:collapse;font:12px ui-monospace,monospace",
    "padding:2px 12px 2px 0;border-bottom:1px solid #8884;text-align:left",
)
"""Of the whole, of facts, of tables, of cells: there is no style sheet that could meet one of the page."""


def text(value: Any) -> str:
    """Any text or number, escaped."""
    return escape(str(value), quote=True)


def data_address(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def facts(parts: Sequence[str]) -> str:
    return f'<div style="{STYLE[1]}">{text(" · ".join(parts))}</div>' if parts else ""


def table(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th style="{STYLE[3]}">{text(column)}</th>' for column in columns)
    lines = ("".join(f'<td style="{STYLE[3]}">{_cell(one)}</td>' for one in row) for row in rows)
    return f'<table style="{STYLE[2]}"><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


class Swatch:
    """A cell with a colour before its words. Drawn, not styled: a policy may refuse a style of one element."""

    def __init__(self, colour: Any, words: Any) -> None:
        known = re.fullmatch(r"#[0-9a-fA-F]{6}", str(colour)) is not None  # never an address
        square = f'<rect width="12" height="12" fill="{colour}"/>' if known else ""
        self.html = f'<svg viewBox="0 0 12 12" width="12" height="12">{square}</svg> {_cell(words)}'


def _cell(value: Any) -> str:
    return value.html if isinstance(value, Swatch) else text(value_text(value))


def tidy(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> tuple[list[Any], list[list[Any]]]:
    """A table as the viewer shows it: without names that only repeat the class, and with numbers that JSON had as text.

    >>> tidy(["class", "name", "output"], [[1, "1", "-Infinity"], [0, None, 2.0]])
    (['class', 'output'], [[1, -inf], [0, 2.0]])
    """

    width = len(columns)
    full = [[*row, *[None] * (width - len(row))] for row in rows]  # a renderer of one's own may give short ones

    def repeats(k: int) -> bool:
        return columns[k] == "name" and all(row[k] is None or str(row[k]) == str(row[k - 1]) for row in full)

    kept = [k for k in range(width) if k == 0 or not repeats(k)]
    numeric = {k for k in kept if all(_is_number(row[k]) for row in full)}
    return [columns[k] for k in kept], [[number(row[k]) if k in numeric else row[k] for k in kept] for row in full]


_UNBOUNDED = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float)) or number(value) is not value


def number(value: Any) -> Any:
    """NaN and infinities that JSON has as text, as numbers; other values as they are."""
    return _UNBOUNDED.get(value, value) if isinstance(value, str) else value


def scalar(made: Body) -> tuple[str, str]:
    """A scalar and its name, as text; a name that only repeats it is left out."""
    value, name = value_text(number(made["value"])), made.get("name")
    return text(value), f" ({text(name)})" if name is not None and str(name) != str(made["value"]) else ""


def classes(made: Body) -> tuple[list[Any], list[list[Any]]]:
    """The classes of a mask as a table, each with its colour."""
    found = [one for one in made["classes"] if isinstance(one, dict)]
    columns, rows = tidy(["class", "name"], [[one.get("index"), one.get("name")] for one in found])
    cells = [[Swatch(one.get("colour"), row[0]), *row[1:], _share(one)] for one, row in zip(found, rows, strict=True)]
    return [*columns, "share"], cells


def _share(one: Body) -> str:
    share = one.get("share")
    return f"{100 * share:.1f} %" if isinstance(share, (int, float)) else "–"


def item(one: Shown) -> str:
    """An item's pictures and the classes in them, or what else its renderer made."""
    if one.picture is None:
        return body(one.form, one.body)
    shown = "".join(_figure(one, caption, made.png()) for caption, made in one.pictures)
    listed = table(*classes(one.body)) if one.body.get("classes") else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">{shown}{listed}</div>'


def _figure(one: Shown, caption: str, png: bytes) -> str:
    assert one.picture is not None
    alt = f"{one.alt}, {caption}" if caption else one.alt
    style = f"width:{one.picture.width}px;max-width:100%;image-rendering:pixelated;display:block"
    drawn = f'<img alt="{text(alt)}" style="{style}" src="{data_address(png)}">'
    return f"<div>{drawn}{facts([caption])}</div>" if caption else drawn


def body(form: Form, made: Body) -> str:
    """What a renderer made, of forms without a picture."""
    if form == "table":
        return table(*tidy(made["columns"], made["rows"]))
    if form == "scalar":
        value, name = scalar(made)
        return f"<code>{value}</code>{name}"
    if form == "text":
        return f'<pre style="white-space:pre-wrap;max-height:20em;overflow:auto">{text(made["text"])}</pre>'
    if form == "tokens":
        return f'<div style="{STYLE[2]};overflow-wrap:anywhere">{" · ".join(map(text, tokens(made)))}</div>'
    if form == "line":
        return "".join(_line(series["values"]) for series in made["series"])
    if form == "histogram":
        return _bars(made["counts"])
    return f"<em>{text(made.get('message', 'nothing to see'))}</em>"


def tokens(made: Body) -> list[str]:
    """Ids with their texts, where they have any."""
    texts = made.get("tokens") or [None] * len(made["values"])
    pairs = zip(made["values"], texts, strict=False)
    return [str(id) if word is None else f"{word} ({id})" for id, word in pairs]


def _line(values: Sequence[Any]) -> str:
    step = -(-len(values) // _MOST_POINTS) or 1
    points = [(k, float(v)) for k, v in enumerate(values) if k % step == 0 and _is_finite(v)]
    if not points:
        return "<em>no value is finite</em>"
    low, high = min(v for _, v in points), max(v for _, v in points)
    height = (high / 2 - low / 2) or 1.0
    across = _WIDTH / max(len(values) - 1, 1)
    path = " ".join(f"{k * across:.1f},{_HEIGHT - (v / 2 - low / 2) / height * _HEIGHT:.1f}" for k, v in points)
    said = f"{value_text(low)} to {value_text(high)}" + (f", every {step}th value drawn" if step > 1 else "")
    line = f'<polyline points="{path}" fill="none" stroke="#0f766e" stroke-width="1.5"/>'
    return f"{_svg(line)}{facts([said])}"


def _bars(counts: Sequence[int]) -> str:
    most, width = max(counts, default=0) or 1, _WIDTH / max(len(counts), 1)
    bars = (
        f'<rect x="{k * width:.1f}" y="{_HEIGHT - n / most * _HEIGHT:.1f}" width="{width:.1f}" '
        f'height="{n / most * _HEIGHT:.1f}" fill="#0f766e"/>'
        for k, n in enumerate(counts)
    )
    return _svg("".join(bars))


def _svg(inside: str) -> str:
    return f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 4}" width="{_WIDTH}" height="{_HEIGHT}">{inside}</svg>'


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < float("inf")


def heading(words: Any, level: int = 4) -> str:
    return f'<h{level} style="margin:12px 0 4px">{text(cell(words))}</h{level}>'
