"""Items as HTML that needs nothing else: for notebooks and files. Everything that comes from a run is escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from endoscope.viewer.render.plain import cell
from endoscope.viewer.render.registry import Body, Form

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
    lines = ("".join(f'<td style="{STYLE[3]}">{text(_shown(one))}</td>' for one in row) for row in rows)
    return f'<table style="{STYLE[2]}"><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def body(form: Form, made: Body, *, png: bytes | None = None) -> str:
    """What a renderer made."""
    if png is not None:
        return f'<img alt="{text(form)}" style="max-width:100%;image-rendering:pixelated" src="{data_address(png)}">'
    if form == "table":
        return table(made["columns"], made["rows"])
    if form == "scalar":
        name = f" ({text(made['name'])})" if made.get("name") is not None else ""
        return f"<code>{text(_shown(made['value']))}</code>{name}"
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
    said = f"{low:.4g} to {high:.4g}" + (f", every {step}th value drawn" if step > 1 else "")
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
