"""Notebook views: a run (`run_html`), and what the debuggers saw of one datapoint (`display_debug_outputs`).

Pictures are inside the HTML, so a saved notebook contains them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endoscope.errors import EndoscopeError
from endoscope.pages.reader import DebugOutputs, load_debug_outputs
from endoscope.render.plain import cell
from endoscope.render.registry import describe
from endoscope.render.renderer import About
from endoscope.report import html
from endoscope.report.html import text
from endoscope.report.items import epoch_text, prediction_text, shown
from endoscope.runs import Epoch, Run, ScoreTable, layout
from endoscope.runs.datapoint import MOST_BYTES, Datapoint
from endoscope.runs.datapoint_values import Item, walk

MOST_PICTURES = 100
_WORST = 5
_EPOCHS = 10
_SCORES = 12
_PROBLEMS = 10
_ARROWS = {"higher": "↑", "lower": "↓"}


class Displayed:
    """A datapoint's debug outputs as HTML; a notebook shows it when it is the last value of a cell."""

    def __init__(self, title: str, parts: list[str]) -> None:
        self._title = title
        self._parts = [f"<h2>{text(title)}</h2>", *parts]

    def _repr_html_(self) -> str:
        return html.fragment(self._parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that opens from disk."""
        page = html.document(self._title, ["<section>", *self._parts, "</section>"])
        Path(path).write_text(page, encoding="utf-8", errors="replace")


def display_debug_outputs(epoch_dir: str | os.PathLike[str], idx: int) -> Displayed:
    """What the debuggers saw of datapoint ``idx``, drawn; ``epoch_dir`` as for `load_debug_outputs`.

    >>> display_debug_outputs("runs/digits/epoch_4", 17)

    A value that cannot be read or drawn is replaced by the reason. Renderers registered with
    `endoscope.render.register` are used.
    """
    outputs = load_debug_outputs(epoch_dir)
    datapoint = _datapoint(Path(epoch_dir), idx)
    names = outputs.list(idx) if isinstance(outputs, DebugOutputs) else [*outputs[idx]]
    parts: list[str] = []
    pictures = 0
    for name in names:
        parts.append(f"<h4>{text(cell(name))}</h4>")
        try:
            for item in walk("debugger", _read(outputs, idx, name), name):
                full = f"not drawn: {MOST_PICTURES} pictures are shown at once" if pictures >= MOST_PICTURES else None
                parts.append(_item(item, datapoint, full))
                pictures += parts[-1].count("<img ")
        except (EndoscopeError, MemoryError) as e:
            parts.append(html.note(str(e) or describe(e), "problem"))
    notes = outputs.notes(idx) if isinstance(outputs, DebugOutputs) else {}
    parts.append(html.debugger_notes(notes))
    return Displayed(f"Datapoint {idx}", parts if names else [html.note("no debugger returned anything"), *parts])


def _read(outputs: Mapping[int, dict[str, Any]], idx: int, name: str) -> Any:
    if not isinstance(outputs, DebugOutputs):
        return outputs[idx][name]
    size = outputs.size(idx, name)
    if size > MOST_BYTES:
        raise MemoryError(f"{size >> 20:,} MB of tensors; at most {MOST_BYTES >> 20} MB are displayed")
    return outputs.read(idx, name)


def _datapoint(folder: Path, idx: int) -> Datapoint | None:
    """The datapoint with its run, for class names and the input that maps are drawn over; None outside of a run."""
    folder = folder.resolve()
    folder = folder.parent if folder.name == layout.DEBUGGER else folder
    number = layout.epoch_of(folder.name)
    root = folder if number is None else folder.parent
    if not (root / layout.RUN).is_file():
        return None
    run = Run(root)
    epoch = run.epoch(number)
    return Datapoint(run, epoch if epoch is not None else Epoch(run, number), idx)


def _item(item: Item, datapoint: Datapoint | None, no_picture: str | None) -> str:
    if datapoint is not None:
        about = datapoint.about(item)
    else:
        about = About(name=item.key, section="debugger", debugger=item.debugger, tokens=item.tokens)
    return html.item(shown(item, about, no_picture=no_picture))


# ---------------------------------------------------------------- a run
def run_html(run: Run) -> str:
    """A run as HTML that needs nothing else: status, scores by epoch, the worst datapoints, problems.

    >>> IPython.display.HTML(run_html(Run("runs/digits")))
    """
    epochs = run.epochs
    facts = [run.kind, run.status_text]
    if run.kind != "evaluation":
        facts.append(f"{len(epochs):,} epoch{'' if len(epochs) == 1 else 's'}")
    parts = [f"<h2>{text(run.name)}</h2>", html.note(" · ".join(facts))]
    scored = [(epoch, table) for epoch in epochs[-_EPOCHS:] if (table := epoch.scores) is not None]
    parts += [_scores(run, scored), _worst(*scored[-1])] if scored else [html.note("no scores yet")]
    parts.append(html.problems([cell(problem) for problem in run.problems], _PROBLEMS))  # now that all has been read
    return html.fragment(parts)


def _scores(run: Run, scored: list[tuple[Epoch, ScoreTable]]) -> str:
    """The scores of the last epochs, with an arrow in the direction that is better."""
    names = [*dict.fromkeys(name for _, table in scored for name in table.aggregated)]
    labels = run.score_labels(names[:_SCORES])
    columns = [f"{cell(label)} {_ARROWS.get(run.directions.get(name, ''), '')}" for name, label in labels.items()]
    rows = []
    for epoch, table in scored:
        number = "eval" if epoch.number is None else epoch.number
        rows.append([number, *(table.aggregated.get(name) for name in labels)])
    epochs = len(run.epochs)
    notes = html.note(f"the last {_EPOCHS} of {epochs:,} epochs") if epochs > _EPOCHS else ""
    notes += html.note(f"{_SCORES} of {len(names)} scores") if len(names) > _SCORES else ""
    return html.table(["epoch", *columns], rows) + notes


def _worst(epoch: Epoch, table: ScoreTable) -> str:
    """The worst datapoints of an epoch by its first score for which lower is better, or else by its first score."""
    name = next((name for name in table.values if table.directions[name] == "lower"), next(iter(table.values), None))
    if name is None:
        return ""
    rows = []
    first = Datapoint(epoch.run, epoch, 0)
    for at in table.worst_first(name)[:_WORST].tolist():
        one = first.beside(int(table.indices[at]))
        rows.append([str(one.idx), float(table.values[name][at]), cell(one.label_text), prediction_text(one)])
    score = cell(epoch.run.score_labels([name])[name])
    title = f"worst {len(rows)} of {len(table.indices):,} datapoints by {score}, {epoch_text(epoch)}"
    return f"<h3>{text(title)}</h3>" + html.table(["datapoint", score, "label", "prediction"], rows)
