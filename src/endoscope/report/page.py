"""The exported page: selected runs, epochs and datapoints as one HTML file that opens from disk, without a server.

Bounded in bytes: pictures beyond the bound are left out, then datapoints, with a note on the page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from endoscope import __version__
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.render.plain import cell, value_text
from endoscope.render.registry import describe
from endoscope.report import html
from endoscope.report.html import text
from endoscope.report.items import epoch_text, prediction_text, shown
from endoscope.report.score_map import EXPLANATION, score_map
from endoscope.report.selection import WORST, Selection
from endoscope.runs import Run, RunNotFoundError, find_runs, ranking
from endoscope.runs.atomic import replacing
from endoscope.runs.datapoint import Datapoint, worst_datapoints
from endoscope.runs.datapoint_values import SECTIONS, Item
from endoscope.runs.files import clean

MOST_RUNS = 16
MOST_BYTES = 40_000_000
"""Approximate size of the items on a page; what comes after them is left out."""
_MOST_SERIES = 24
_MOST_EPOCHS = 1000
_MOST_PROBLEMS = 20
_FULL = "not drawn: the page is full"
_SAME_IN_ALL_EPOCHS = ("inputs", "labels", "meta_info")


def export(
    folders: Sequence[str | os.PathLike[str]],
    file: str | os.PathLike[str],
    selection: Selection,
    *,
    overwrite: bool = False,
) -> int:
    """Write the page atomically, and return its size in bytes.

    >>> export(["runs/digits"], "digits.html", Selection(worst=5, epochs="all"))
    812345
    """
    path = Path(file)
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; --export needs the name of a file")
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{str(path)!r} already exists; choose another name, or replace it with --overwrite")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {str(path.parent)!r} for {path.name!r}; create it first")
    content = page_html(folders, selection).encode("utf-8", "replace")
    try:
        with replacing(path) as out:
            out.write(content)
    except OSError as e:
        raise ConfigError(f"cannot write {str(path)!r}: {e.strerror or e}; choose another place") from e
    return len(content)


def page_html(folders: Sequence[str | os.PathLike[str]], selection: Selection) -> str:
    """The page as text."""
    runs, problems = _find(folders)
    selection.check(runs)
    budget = _Budget()
    sections = "".join(_RunSection(k, run, selection, budget).content() for k, run in enumerate(runs))
    title = f"Endoscope: {', '.join(map(_run_name, runs))}"
    facts = {
        "exported": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "endoscope": __version__,
        "size about": f"{len(sections.encode(errors='replace')) / 1e6 + 0.01:.2f} MB",
    }
    head = [f"<h1>{text(title)}</h1>", html.facts(facts), html.problems(problems, _MOST_PROBLEMS)]
    return html.document(title, [*head, budget.notes(), sections])


def _find(folders: Sequence[str | os.PathLike[str]]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, each once, and what could not be found or read."""
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for folder in folders:
        if not Path(folder).is_dir():
            raise RunNotFoundError(f"there is no folder {str(folder)!r}; give the work_dir of a run, or of several")
        name = clean(Path(folder).resolve().name)
        inside = find_runs(folder)
        problems += [f"{name}: {problem}" for problem in inside.problems]
        if not inside.runs:
            problems.append(f"there is no run in {name!r}")
        runs |= {run.path.resolve(): run for run in inside.runs}
    if not runs:
        names = ", ".join(repr(str(folder)) for folder in folders)
        raise ConfigError(
            f"there is nothing to export: no run is in {names}; give the work_dir of a run, or of several"
        )
    if len(runs) > MOST_RUNS:
        problems.append(f"{MOST_RUNS} of {len(runs)} runs are in this page; name fewer folders")
    return [*runs.values()][:MOST_RUNS], problems


def _run_name(run: Run) -> str:
    return clean(run.path.resolve().name) or "run"


@dataclass
class _Budget:
    """How many bytes of items the page holds so far, and what was left out of it."""

    used: int = 0
    pictures: int = 0
    datapoints: int = 0

    @property
    def full(self) -> bool:
        return self.used >= MOST_BYTES

    def notes(self) -> str:
        most = f"a page holds about {MOST_BYTES / 1e6:.0f} MB"
        notes = [f"{self.pictures:,} pictures are left out: {most}"] if self.pictures else []
        if self.datapoints:
            notes.append(f"{self.datapoints:,} datapoints are left out: {most}; choose fewer, or fewer epochs")
        return "".join(html.note(words, "problem") for words in notes)


class _RunSection:
    """One run of the page."""

    def __init__(self, number: int, run: Run, selection: Selection, budget: _Budget) -> None:
        self._number = number
        self._run = run
        self._selection = selection
        self._budget = budget
        self._epochs = selection.epochs_of(run)
        self._scored = next((epoch for epoch in reversed(self._epochs) if epoch.scores is not None), None)
        self._table = self._scored.scores if self._scored is not None else None
        self._metric, self._column = self._ranked_by()
        self._datapoints = self._chosen()

    def content(self) -> str:
        parts = [self._curves(), self._map()]
        for idx in self._datapoints:
            if self._budget.full:
                self._budget.datapoints += 1
            else:
                parts.append(self._datapoint(idx))
        return "".join([self._summary(), *parts])  # the summary comes first, but knows all problems

    def _ranked_by(self) -> tuple[str | None, ranking.Column | None]:
        """The score that ranks the datapoints, and its values; None if there is none."""
        table = self._table
        metric = self._selection.metric or next(iter(table.values if table is not None else ()), None)
        if table is None or metric is None or metric not in table.values:
            return None, None
        return metric, ranking.column(table, metric, table.directions[metric], table.indices)

    def _chosen(self) -> list[int]:
        if self._selection.datapoints is not None:
            return [*self._selection.datapoints]
        if self._column is None or self._scored is None:
            return []
        return [one.idx for _, one in worst_datapoints(self._scored, self._column, self._selection.worst)]

    def _without_paths(self, words: Any) -> str:
        """The text of an error or a problem, without the paths of this machine."""
        result = str(words)
        for path in (self._run.path.resolve(), self._run.path):
            result = result.replace(str(path), _run_name(self._run)) if len(str(path)) > 1 else result
        return clean(result)

    def _label(self, score: str) -> str:
        return str(cell(self._run.score_labels([score])[score]))

    def _summary(self) -> str:
        run, table = self._run, self._table
        facts: dict[str, Any] = {
            "kind": run.kind,
            "status": self._without_paths(run.status_text),
            "epochs": len(run.epochs),
        }
        if table is not None:
            facts["datapoints"] = len(table.indices)
        if run.about.started is not None:
            facts["started"] = f"{run.about.started:%Y-%m-%d %H:%M} UTC"
        scores = ""
        if table is not None and self._scored is not None:
            rows = [[self._label(name), value, table.directions.get(name)] for name, value in table.aggregated.items()]
            scores = html.table([f"score, {epoch_text(self._scored)}", "value", "better"], rows[:100])
        problems = html.problems([self._without_paths(problem) for problem in run.problems], _MOST_PROBLEMS)
        return f"<section><h2>Run {text(_run_name(run))}</h2>{html.facts(facts)}{scores}{problems}</section>"

    # ---- curves
    def _curves(self) -> str:
        series = self._series() if self._run.kind != "evaluation" else {}
        if not series:
            return ""
        figures = "".join(_curve(name, series[name]) for name in [*series][:_MOST_SERIES])
        notes = html.note(f"{_MOST_SERIES} of {len(series)} curves are shown") if len(series) > _MOST_SERIES else ""
        epochs = len(self._run.epochs)
        if epochs > _MOST_EPOCHS:
            notes += html.note(f"of the last {_MOST_EPOCHS:,} of {epochs:,} epochs")
        return f'<section><h2>Curves</h2><div class="flow">{figures}</div>{notes}</section>'

    def _series(self) -> dict[str, dict[int, float]]:
        """Scores and mean training losses by epoch."""
        series: dict[str, dict[int, float]] = {}
        for epoch in self._run.epochs[-_MOST_EPOCHS:]:
            table, number = epoch.scores, epoch.number or 0
            for name, value in (table.aggregated if table is not None else {}).items():
                series.setdefault(self._label(name), {})[number] = value
            for name, losses in epoch.losses.items():
                if len(losses):
                    with np.errstate(all="ignore"):
                        series.setdefault(f"training {cell(name)}", {})[number] = float(losses.mean())
        return series

    # ---- score map
    def _map(self) -> str:
        table, column, epoch = self._table, self._column, self._scored
        if table is None or column is None or epoch is None:
            return "<section><h2>Score map</h2><p>No score of single datapoints can be read here.</p></section>"
        metric, fails = self._label(str(self._metric)), column.fails()
        finite = column.values[np.isfinite(column.values) & ~column.missing]
        facts = {
            "score": f"{metric}, {column.direction} is better",
            "of": epoch_text(epoch),
            "datapoints": len(table.indices),
            "fail": f"{int(fails.sum()):,} (of the worst {ranking.PERCENTILE} %, and every NaN)",
            "from": f"{value_text(float(finite.min()))} to {value_text(float(finite.max()))}" if len(finite) else None,
            "NaN": int(column.nan.sum()),
            "infinite": int(np.isinf(column.values[~column.missing]).sum()),
            "without the score": int(column.missing.sum()),
        }
        rows = []
        for at, one in worst_datapoints(epoch, column, max(len(self._datapoints), WORST)):
            index = html.link(one.idx, self._anchor(one.idx)) if one.idx in self._datapoints else str(one.idx)
            score, failure = float(column.values[at]), "fails" if fails[at] else ""
            rows.append([index, score, failure, cell(one.label_text), prediction_text(one)])
        drawn = score_map(column, fails, f"score map of {metric}") + html.note(EXPLANATION)
        worst = html.table(["index", metric, "", "label", "predicted"], rows)
        head = f"<h2>Score map</h2>{html.facts(facts)}"
        return f"<section>{head}{drawn}<h3>Worst datapoints</h3>{worst}</section>"

    def _anchor(self, idx: int) -> str:
        return f"run{self._number}-dp{idx}"

    # ---- datapoints
    def _datapoint(self, idx: int) -> str:
        epochs = self._epochs
        if not epochs:
            return ""
        first = Datapoint(self._run, epochs[-1], idx)
        parts = [self._values(first, name) for name in _SAME_IN_ALL_EPOCHS]
        for epoch in epochs:
            at = Datapoint(self._run, epoch, idx)
            heading = f"<h2>{text(epoch_text(epoch).capitalize())}</h2>" if len(epochs) > 1 else ""
            parts.append(f"{heading}<h3>Scores</h3>{self._scores(at)}")
            parts += [self._values(at, name) for name in SECTIONS if name not in _SAME_IN_ALL_EPOCHS]
        where = f", {epoch_text(epochs[0])}" if len(epochs) == 1 else ""
        title = f"Datapoint {idx} of {_run_name(self._run)}{where}"
        return f'<section id="{self._anchor(idx)}"><h2>{text(title)}</h2>{"".join(parts)}</section>'

    def _scores(self, at: Datapoint) -> str:
        facts: dict[str, Any] = {}
        if at.label_text is not None:
            facts["label"] = cell(at.label_text)
        if at.prediction is not None:
            facts["predicted"] = prediction_text(at)
        table = at.epoch.scores
        if table is not None and (places := np.flatnonzero(table.indices == at.idx).tolist()):
            for name, values in table.values.items():
                if name not in table.missing or not table.missing[name][places[0]]:
                    facts[self._label(name)] = float(values[places[0]])
        return html.facts(facts) if facts else html.note(f"datapoint {at.idx} has no score in {epoch_text(at.epoch)}")

    def _values(self, at: Datapoint, section: str) -> str:
        if section == "debugger":
            inside = self._or_problem(self._debuggers, at)
        else:
            inside = self._or_problem(self._items, at, section)
        return f"<h3>{text(SECTIONS[section])}</h3>{inside}"

    def _or_problem(self, draw: Callable[..., str], *args: Any) -> str:
        """What cannot be read is replaced by the reason, and the rest is shown."""
        try:
            return draw(*args)
        except (EndoscopeError, OSError, MemoryError, RecursionError) as e:
            return html.note(self._without_paths(e) or describe(e), "problem")

    def _debuggers(self, at: Datapoint) -> str:
        parts = []
        for name in at.debuggers():
            parts.append(f"<h4>{text(cell(name))}</h4>{self._or_problem(self._items, at, 'debugger', name)}")
        return "".join(parts) + self._or_problem(lambda: html.debugger_notes(at.notes()))

    def _items(self, at: Datapoint, section: str, debugger: str | None = None) -> str:
        return f'<div class="flow">{"".join(self._item(at, item) for item in at.items(section, debugger))}</div>'

    def _item(self, at: Datapoint, item: Item) -> str:
        one = shown(item, at.about(item), no_picture=_FULL if self._budget.full else None)
        if one.form == "problem":
            self._budget.pictures += one.body["message"] == _FULL
            one = replace(one, body={"message": self._without_paths(one.body["message"])})
        content = html.item(one)
        self._budget.used += len(content)
        return content


def _curve(name: str, points: dict[int, float]) -> str:
    numbers = [*points]
    values = [points.get(number, float("nan")) for number in range(min(numbers), max(numbers) + 1)]
    if len(values) > 10 * _MOST_EPOCHS:  # the numbers of the epochs are far apart
        values = [*points.values()]
    caption = f"epoch {numbers[0]} to {numbers[-1]}; last {value_text(points[numbers[-1]])}"
    drawn = html.line(values, dots=len(values) <= 60)
    return f"<figure><h3>{text(name)}</h3>{drawn}<figcaption>{text(caption)}</figcaption></figure>"
