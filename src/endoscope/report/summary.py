"""summary_html: a run as the last line of a notebook's cell shows it: what it is, its scores by epoch, what is wrong.

Needs no package of the viewer's. Everything that comes from the run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endoscope.runs.run import Run

_EPOCHS = 10
_SCORES = 12
_PROBLEMS = 5
_TEXT = 200
_CELL = "padding:2px 12px 2px 0;border-bottom:1px solid #8884;text-align:left"


def summary_html(run: Run) -> str:
    """Plain HTML that needs nothing else.

    >>> summary_html(Run("runs/digits"))
    '<div ...><b>digits</b> training · finished · 5 epochs<table ...'
    """
    epochs = run.epochs
    count = "" if run.kind == "evaluation" else f" · {len(epochs):,} epoch{'' if len(epochs) == 1 else 's'}"
    parts = [f"<b>{_text(run.name)}</b> {_text(f'{run.kind} · {run.status_text}{count}')}"]
    scored = [(epoch.number, scores) for epoch in epochs[-_EPOCHS:] if (scores := epoch.scores) is not None]
    names = [*dict.fromkeys(name for _, scores in scored for name in scores.aggregated)]
    if names:
        labels = run.score_labels(names[:_SCORES])
        rows: list[list[object]] = [["epoch", *(f"{label} {_arrow(run, name)}" for name, label in labels.items())]]
        for number, scores in scored:
            found = (scores.aggregated.get(name) for name in labels)
            rows.append(["eval" if number is None else number, *map(_number, found)])
        parts.append(_table(rows))
        said = [f"the last {_EPOCHS} of {len(epochs):,} epochs"] if len(epochs) > _EPOCHS else []
        said += [f"{_SCORES} of {len(names)} scores"] if len(names) > _SCORES else []
        parts += [f"<div>{_text(', '.join(said))}</div>"] if said else []
    else:
        parts.append("<div>no scores yet</div>")
    problems = run.problems
    parts += [f"<div>problem: {_text(problem)}</div>" for problem in problems[:_PROBLEMS]]
    if len(problems) > _PROBLEMS:
        parts.append(f"<div>and {len(problems) - _PROBLEMS:,} problems more</div>")
    return f'<div style="font:13px/1.5 system-ui,sans-serif">{"".join(parts)}</div>'


def _number(value: float | None) -> str:
    """As the viewer shows it."""
    if value is None:
        return "–"
    return f"{value + 0.0:.4g}".replace("nan", "NaN").replace("inf", "∞").replace("-", "−")


def _arrow(run: Run, name: str) -> str:
    return {"higher": "↑", "lower": "↓"}.get(run.directions.get(name, ""), "")


def _table(rows: Iterable[Iterable[object]]) -> str:
    lines = ("".join(f'<td style="{_CELL}">{_text(one)}</td>' for one in row) for row in rows)
    inside = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table style="border-collapse:collapse;font:12px ui-monospace,monospace">{inside}</table>'


def _text(value: object) -> str:
    words = str(value)
    shown = words if len(words) <= _TEXT else f"{words[:_TEXT]}…"
    return escape(shown.encode(errors="replace").decode())
