"""run_html: a run as a notebook shows it: what it is, how it went, where it does worst."""

from __future__ import annotations

from endoscope.render.plain import cell
from endoscope.report import html
from endoscope.runs import Run
from endoscope.runs.datapoint import Datapoint

_WORST = 5
_EPOCHS = 10
_SCORES = 12
_PROBLEMS = 10


def run_html(run: Run) -> str:
    """A run as HTML that needs nothing else.

    >>> IPython.display.HTML(run_html(Run("runs/digits")))
    """
    epochs = run.epochs
    parts = [html.heading(run.name, 3), html.facts([run.kind, run.status, f"{len(epochs):,} epochs"])]
    scored = [(epoch, scores) for epoch in epochs[-_EPOCHS:] if (scores := epoch.scores) is not None]
    if scored:
        names = [*dict.fromkeys(name for _, scores in scored for name in scores.aggregated)]
        labels = run.score_labels(names[:_SCORES])
        rows = [
            ["eval" if epoch.number is None else epoch.number, *(scores.aggregated.get(name) for name in labels)]
            for epoch, scores in scored
        ]
        parts.append(html.table(["epoch", *map(cell, labels.values())], rows))
        said = [f"the last {_EPOCHS} of {len(epochs):,} epochs"] if len(epochs) > _EPOCHS else []
        said += [f"{_SCORES} of {len(names)} scores"] if len(names) > _SCORES else []
        parts.append(html.facts(said))
        parts.append(_worst(run))
    else:
        parts.append("<em>no scores yet</em>")
    problems = run.problems
    shown = [html.text(cell(problem)) for problem in problems[:_PROBLEMS]]
    if shown:
        more = f"<li>and {len(problems) - _PROBLEMS:,} more</li>" if len(problems) > _PROBLEMS else ""
        parts.append(f"<ul>{''.join(f'<li>{problem}</li>' for problem in shown)}{more}</ul>")
    return f'<div style="{html.STYLE[0]}">{"".join(parts)}</div>'


def _worst(run: Run) -> str:
    """The datapoints of the last scored epoch that do worst in its first score, for which lower is better if any is."""
    epoch = next(epoch for epoch in reversed(run.epochs) if epoch.scores is not None)
    table = epoch.scores
    assert table is not None
    name = next((name for name in table.values if table.directions[name] == "lower"), next(iter(table.values), None))
    if name is None:
        return ""
    rows = []
    first = Datapoint(run, epoch, 0)
    for at in table.worst_first(name)[:_WORST].tolist():
        one = first.beside(int(table.indices[at]))
        said = one.class_text(one.prediction.index) if one.prediction is not None else None
        label = one.label_text
        rows.append([str(one.idx), float(table.values[name][at]), cell(label), cell(said)])
    score = cell(run.score_labels([name])[name])
    where = "the evaluation" if epoch.number is None else f"epoch {epoch.number}"
    title = f"worst {len(rows)} of {len(table.indices):,} datapoints by {score}, {where}"
    return html.facts([title]) + html.table(["datapoint", score, "label", "prediction"], rows)
