"""export: a selection of runs, epochs and datapoints as one HTML file that opens from disk, without a server or script.

Bounded in bytes: pictures beyond the bound are left out, then datapoints, and the page says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from endoscope import __version__
from endoscope.errors import ConfigError, EndoscopeError, closest
from endoscope.render.plain import cell
from endoscope.render.registry import describe
from endoscope.report import export_html as html
from endoscope.report.html import text
from endoscope.report.shown import shown, value_text
from endoscope.runs import Epoch, Run, RunNotFoundError, ScoreTable, find_runs, ranking
from endoscope.runs.atomic import replacing
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import SECTIONS, Found
from endoscope.runs.files import clean

WORST = 12
MOST_RUNS = 16
MOST_DATAPOINTS = 1000
MOST_BYTES = 40_000_000
"""Of a page, about; what comes after it is left out."""
_MOST_SERIES = 24
_MOST_EPOCHS = 1000
_MOST_PROBLEMS = 20
_FULL = "not drawn: the page is full"
_FIXED = ("inputs", "labels", "meta_info")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of each run is exported."""

    datapoints: tuple[int, ...] | None = None
    """By index; None takes the worst ones."""
    worst: int = WORST
    metric: str | None = None
    """The score by which datapoints are the worst; the first one of a run when None."""
    epochs: Literal["last", "all"] | tuple[int, ...] = "last"

    @classmethod
    def of(cls, *, datapoints: str | None, worst: int | None, metric: str | None, epochs: str | None) -> Wanted:
        """As the command line has it.

        >>> Wanted.of(datapoints="3,17", worst=None, metric=None, epochs="0,4")
        Wanted(datapoints=(3, 17), worst=12, metric=None, epochs=(0, 4))
        """
        if datapoints is not None and worst is not None:
            raise ConfigError("--datapoints and --worst were both given; choose one of them")
        chosen = _numbers(datapoints, "--datapoints") if datapoints is not None else None
        if max(len(chosen or ()), worst or 0) > MOST_DATAPOINTS:
            raise ConfigError(f"at most {MOST_DATAPOINTS} datapoints are exported into one page; choose fewer")
        which: Literal["last", "all"] | tuple[int, ...] = "last"
        if epochs == "all":
            which = "all"
        elif epochs is not None and epochs != "last":
            which = _numbers(epochs, "--epochs", others="last, all, or ")
        return cls(chosen, WORST if worst is None else worst, metric, which)


def _numbers(given: str, option: str, *, others: str = "") -> tuple[int, ...]:
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", given):
        raise ConfigError(f"{option} is {given[:80]!r}; expected {others}whole numbers with commas, such as 3,17,42")
    return tuple(dict.fromkeys(map(int, given.split(","))))


def export(
    folders: Sequence[str | os.PathLike[str]], file: str | os.PathLike[str], wanted: Wanted, *, overwrite: bool = False
) -> int:
    """Write the page, whole or not at all, and return its size in bytes.

    >>> export(["runs/digits"], "digits.html", Wanted(worst=5, epochs="all"))
    812345
    """
    path = Path(file)
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; --export needs the name of a file")
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{str(path)!r} is there already; choose another name, or replace it with --overwrite")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into; make it first")
    content = made_page(folders, wanted).encode("utf-8", "replace")
    try:
        with replacing(path) as out:
            out.write(content)
    except OSError as e:
        raise ConfigError(f"cannot write {str(path)!r}: {e.strerror or e}; choose another place") from e
    return len(content)


def made_page(folders: Sequence[str | os.PathLike[str]], wanted: Wanted) -> str:
    """The page as text."""
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for folder in folders:
        if not Path(folder).is_dir():
            raise RunNotFoundError(f"there is no folder {str(folder)!r}; give the work_dir of a run, or of several")
        found = find_runs(folder)
        name = clean(Path(folder).resolve().name)
        problems += [f"{name}: {problem}" for problem in found.problems]
        if not found.runs:
            problems.append(f"there is no run in {name!r}")
        runs |= {run.path.resolve(): run for run in found.runs}
    if len(runs) > MOST_RUNS:
        problems.append(f"{MOST_RUNS} of {len(runs)} runs are in this page; name fewer folders")
    chosen = [*runs.values()][:MOST_RUNS]
    if not chosen:
        names = ", ".join(repr(str(folder)) for folder in folders)
        raise ConfigError(
            f"there is nothing to export: no run is in {names}; give the work_dir of a run, or of several"
        )
    _check(wanted, chosen)
    bound = _Bound()
    sections = [part for k, run in enumerate(chosen) for part in _Section(k, run, wanted, bound).parts()]
    title = ", ".join(_run_name(run) for run in chosen)
    said = {
        "exported": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "endoscope": __version__,
        "size about": f"{bound.used / 1e6 + 0.01:.2f} MB",
    }
    head = [f"<h1>Endoscope: {text(title)}</h1>", html.facts(said)]
    head += [html.note(problem, "problem") for problem in problems[:_MOST_PROBLEMS]]
    return html.page(f"Endoscope: {title}", [*head, *bound.told(), *sections])


def _check(wanted: Wanted, runs: Sequence[Run]) -> None:
    """Epochs, scores and datapoints that no run has are mistakes of the command line; so is a page without anything."""
    if isinstance(wanted.epochs, tuple):
        numbers = sorted({epoch.number for run in runs for epoch in run.epochs if epoch.number is not None})
        absent = [number for number in wanted.epochs if number not in numbers]
        if absent and not numbers and any(run.kind == "evaluation" for run in runs):
            raise ConfigError(f"an evaluation has no epoch {absent[0]}; leave --epochs out")
        if absent:
            which = f"there are {numbers[0]} to {numbers[-1]}" if numbers else "there are none yet"
            raise ConfigError(f"no run has an epoch {absent[0]}; {which}")
    if wanted.metric is not None:
        tables = [table for run in runs for epoch in _epochs(run, wanted) if (table := epoch.scores) is not None]
        known = [*dict.fromkeys(name for table in tables for name in table.values)]
        if tables and wanted.metric not in known:
            near = closest(wanted.metric, known) or f"; there are {', '.join(map(repr, known))}"
            raise ConfigError(f"no datapoint has the score {wanted.metric!r}{near}")
    there = reduce(np.union1d, [_known(run, wanted) for run in runs])
    which = f"there are {len(there):,}, from {there[0]} to {there[-1]}" if len(there) else "there are none yet"
    unknown = [idx for idx in wanted.datapoints or () if idx not in there]
    if unknown:
        raise ConfigError(f"no run has a datapoint {unknown[0]} in these epochs; {which}")
    empty = wanted.datapoints is None and not any(
        epoch.scores is not None or epoch.losses for run in runs for epoch in run.epochs
    )
    if empty:
        named = f"; {which}, of which --datapoints takes some" if len(there) else "; nothing was captured either"
        raise ConfigError(f"there is nothing to export: no run has a score or a loss yet{named}")


def _known(run: Run, wanted: Wanted) -> NDArray[np.int64]:
    """The datapoints of the chosen epochs that have a score, or of which something was kept."""
    epochs = _epochs(run, wanted)
    scored = [table.indices for epoch in epochs if (table := epoch.scores) is not None]
    kept = [each for epoch in epochs for each in Datapoint(run, epoch, 0).kept().values()]
    return reduce(np.union1d, [np.empty(0, np.int64), *scored, *kept])


def _epochs(run: Run, wanted: Wanted) -> list[Epoch]:
    """The chosen epochs of a run. An evaluation has its one, whichever is asked for."""
    epochs = run.epochs
    if run.kind == "evaluation" or wanted.epochs == "all":
        return epochs
    if isinstance(wanted.epochs, tuple):
        return [epoch for epoch in epochs if epoch.number in wanted.epochs]
    scored = next((epoch for epoch in reversed(epochs) if epoch.scores is not None), None)
    return [scored] if scored is not None else epochs[-1:]


def _run_name(run: Run) -> str:
    return clean(run.path.resolve().name) or "run"


class _Bound:
    """How much the page holds so far, and what was left out of it."""

    def __init__(self) -> None:
        self.used = 0
        self.pictures = 0
        self.datapoints = 0

    @property
    def full(self) -> bool:
        return self.used >= MOST_BYTES

    def add(self, part: str) -> str:
        self.used += len(part)
        return part

    def told(self) -> Iterator[str]:
        most = f"a page holds about {MOST_BYTES / 1e6:.0f} MB"
        if self.pictures:
            yield html.note(f"{self.pictures:,} pictures are left out: {most}", "problem")
        if self.datapoints:
            yield html.note(
                f"{self.datapoints:,} datapoints are left out: {most}; choose fewer, or fewer epochs", "problem"
            )


class _Section:
    """One run of the page."""

    def __init__(self, number: int, run: Run, wanted: Wanted, bound: _Bound) -> None:
        self._number = number
        self._run = run
        self._wanted = wanted
        self._bound = bound
        self._epochs = _epochs(run, wanted)
        self._ranked = next((epoch for epoch in reversed(self._epochs) if epoch.scores is not None), None)
        self._table = self._ranked.scores if self._ranked is not None else None

    def parts(self) -> Iterator[str]:
        chosen = self._datapoints()
        made = [self._bound.add(part) for part in (self._curves(), self._map(chosen))]
        for idx in chosen:
            if self._bound.full:
                self._bound.datapoints += 1
            else:
                before = self._bound.used  # its items were counted one by one, to stop in time
                made.append(self._datapoint(idx))
                self._bound.used = before + len(made[-1])
        yield self._bound.add(self._summary())  # last, when all problems are known
        yield from made

    def _shown(self, words: Any) -> str:
        """The text of an error or a problem without the places of this machine's folders."""
        told = str(words)
        for path in (self._run.path.resolve(), self._run.path):
            told = told.replace(str(path), _run_name(self._run)) if len(str(path)) > 1 else told
        return clean(told)

    def _summary(self) -> str:
        run, about = self._run, self._run.about
        said: dict[str, Any] = {"kind": run.kind, "status": self._shown(run.status_text), "epochs": len(run.epochs)}
        if self._table is not None:
            said["datapoints"] = len(self._table.indices)
        if about.started is not None:
            said["started"] = f"{about.started:%Y-%m-%d %H:%M} UTC"
        problems = [self._shown(problem) for problem in run.problems]
        told = "".join(html.note(problem, "problem") for problem in problems[:_MOST_PROBLEMS])
        if len(problems) > _MOST_PROBLEMS:
            told += html.note(f"and {len(problems) - _MOST_PROBLEMS:,} problems more", "problem")
        scores = ""
        if self._table is not None and self._ranked is not None:
            found = self._table.aggregated.items()
            rows = [[self._label(name), value, self._table.directions.get(name)] for name, value in found]
            scores = html.table([f"score, {_where(self._ranked)}", "value", "better"], rows[:100])
        return f"<section><h2>Run {text(_run_name(run))}</h2>{html.facts(said)}{scores}{told}</section>"

    # ---- curves
    def _curves(self) -> str:
        series: dict[str, dict[int | None, float]] = {}
        epochs = self._run.epochs
        for epoch in epochs[-_MOST_EPOCHS:]:
            table = epoch.scores
            for name, value in (table.aggregated if table is not None else {}).items():
                series.setdefault(self._label(name), {})[epoch.number] = value
            for name, losses in epoch.losses.items():
                if len(losses):
                    with np.errstate(all="ignore"):
                        series.setdefault(f"training {cell(name)}", {})[epoch.number] = float(losses.mean())
        if self._run.kind == "evaluation" or not series:
            return ""
        figures = "".join(self._curve(name, series[name]) for name in [*series][:_MOST_SERIES])
        left_out = len(series) - _MOST_SERIES
        more = html.note(f"{_MOST_SERIES} of {len(series)} curves are shown") if left_out > 0 else ""
        if len(epochs) > _MOST_EPOCHS:
            more += html.note(f"of the last {_MOST_EPOCHS:,} of {len(epochs):,} epochs")
        return f'<section><h2>Curves</h2><div class="flow">{figures}</div>{more}</section>'

    def _curve(self, name: str, points: dict[int | None, float]) -> str:
        numbers = [number for number in points if number is not None]
        values = [points.get(number, float("nan")) for number in range(min(numbers), max(numbers) + 1)]
        if len(values) > 10 * _MOST_EPOCHS:  # epochs far apart: by their order
            values = [points[number] for number in numbers]
        last = f"epoch {numbers[0]} to {numbers[-1]}; last {value_text(points[numbers[-1]])}"
        drawn = html.line(values, dots=len(values) <= 60)
        return f"<figure><h3>{text(name)}</h3>{drawn}<figcaption>{text(last)}</figcaption></figure>"

    # ---- score map
    def _label(self, score: str) -> str:
        return str(cell(self._run.score_labels([score])[score]))

    def _metric(self, table: ScoreTable) -> str | None:
        if self._wanted.metric is not None:
            return self._wanted.metric if self._wanted.metric in table.values else None
        return next(iter(table.values), None)

    def _column(self) -> ranking.Column | None:
        metric = self._metric(self._table) if self._table is not None else None
        if self._table is None or metric is None:
            return None
        return ranking.column(self._table, metric, self._table.directions[metric], self._table.indices)

    def _datapoints(self) -> list[int]:
        if self._wanted.datapoints is not None:
            return [*self._wanted.datapoints]
        column = self._column()
        if column is None or self._table is None:
            return []
        order = [at for at in column.worst_first()[: self._wanted.worst].tolist() if not column.missing[at]]
        return [int(self._table.indices[at]) for at in order]

    def _map(self, chosen: Sequence[int]) -> str:
        table, column = self._table, self._column()
        if table is None or column is None or self._ranked is None:
            return (
                "<section><h2>Score map</h2><p>There are no scores of datapoints here that can be read.</p></section>"
            )
        metric = self._label(str(self._metric(table)))
        fails = column.fails()
        finite = column.values[np.isfinite(column.values) & ~column.missing]
        said = {
            "score": f"{metric}, {column.direction} is better",
            "of": _where(self._ranked),
            "datapoints": len(table.indices),
            "fail": f"{int(fails.sum()):,} (of the worst {ranking.PERCENTILE} %, and every NaN)",
            "from": f"{value_text(float(finite.min()))} to {value_text(float(finite.max()))}" if len(finite) else None,
            "NaN": int(column.nan.sum()),
            "infinite": int(np.isinf(column.values[~column.missing]).sum()),
            "without the score": int(column.missing.sum()),
        }
        drawn = html.score_map(column, fails, f"score map of {metric}")
        explained = "One cell a datapoint, the worst first; failures have a dark corner, NaN is hatched, "
        explained += "infinite violet, no score hollow."
        rows = []
        for at in column.worst_first()[: max(len(chosen), WORST)].tolist():
            if column.missing[at]:
                break
            one = Datapoint(self._run, self._ranked, int(table.indices[at]))
            index = html.Link(one.idx, self._anchor(one.idx)) if one.idx in chosen else str(one.idx)
            value = float(column.values[at])
            rows.append([index, value, "fails" if fails[at] else "", cell(one.label_text), _prediction(one)])
        worst = html.table(["index", metric, "", "label", "predicted"], rows)
        return (
            f"<section><h2>Score map</h2>{html.facts(said)}{drawn}{html.note(explained)}"
            f"<h3>Worst datapoints</h3>{worst}</section>"
        )

    def _anchor(self, idx: int) -> str:
        return f"run{self._number}-dp{idx}"

    # ---- datapoints
    def _datapoint(self, idx: int) -> str:
        epochs = self._epochs
        parts = []
        if not epochs:
            return ""
        first = Datapoint(self._run, epochs[-1], idx)
        parts += [self._values(first, name) for name in _FIXED]
        for epoch in epochs:
            at = Datapoint(self._run, epoch, idx)
            heading = f"<h2>{text(_where(epoch).capitalize())}</h2>" if len(epochs) > 1 else ""
            parts.append(f"{heading}<h3>Scores</h3>{self._scores(at)}")
            parts += [self._values(at, name) for name in SECTIONS if name not in _FIXED]
        where = f", {_where(epochs[0])}" if len(epochs) == 1 else ""
        title = f"Datapoint {idx} of {_run_name(self._run)}{where}"
        return f'<section id="{self._anchor(idx)}"><h2>{text(title)}</h2>{"".join(parts)}</section>'

    def _scores(self, at: Datapoint) -> str:
        said: dict[str, Any] = {}
        if at.label_text is not None:
            said["label"] = cell(at.label_text)
        if at.prediction is not None:
            said["predicted"] = _prediction(at)
        table = at.epoch.scores
        if table is not None and (places := np.flatnonzero(table.indices == at.idx).tolist()):
            for name, values in table.values.items():
                if name not in table.missing or not table.missing[name][places[0]]:
                    said[self._label(name)] = float(values[places[0]])
        return html.facts(said) if said else html.note(f"datapoint {at.idx} has no score in {_where(at.epoch)}")

    def _values(self, at: Datapoint, section: str) -> str:
        inside = ""
        try:
            debuggers: list[str | None] = [*at.debuggers()] if section == "debugger" else [None]
            for debugger in debuggers:
                heading = f"<h4>{text(cell(debugger))}</h4>" if debugger is not None else ""
                inside += f'{heading}<div class="flow">{self._items(at, section, debugger)}</div>'
            notes = at.notes() if section == "debugger" else {}
            rows = [[kind, cell(of), cell(why)] for kind, each in notes.items() for of, why in list(each.items())[:50]]
            inside += html.table(["note", "of", "says"], rows) if rows else ""
        except (EndoscopeError, OSError, MemoryError, RecursionError) as e:
            inside += html.note(self._shown(e) or describe(e), "problem")
        return f"<h3>{text(SECTIONS[section])}</h3>{inside}"

    def _items(self, at: Datapoint, section: str, debugger: str | None) -> str:
        try:
            return "".join(self._bound.add(self._item(at, found)) for found in at.items(section, debugger))
        except (EndoscopeError, OSError, MemoryError, RecursionError) as e:
            if debugger is None:
                raise
            return html.note(self._shown(e) or describe(e), "problem")  # the other debuggers are shown

    def _item(self, at: Datapoint, found: Found) -> str:
        one = shown(found, at.about(found), no_picture=_FULL if self._bound.full else None)
        if one.picture is not None:
            inside = html.pictures(one)
        elif one.form == "problem":
            self._bound.pictures += one.body["message"] == _FULL
            inside = html.note(self._shown(one.body["message"]), "problem")
        else:
            inside = html.body(one.form, one.body) + html.of_text(one.body)
        return f'<div><div class="what">{text(" · ".join(one.said))}</div>{inside}</div>'


def _where(epoch: Epoch) -> str:
    return "the evaluation" if epoch.number is None else f"epoch {epoch.number}"


def _prediction(at: Datapoint) -> str:
    if at.prediction is None:
        return "–"
    return f"{cell(at.class_text(at.prediction.index))} ({at.prediction.probability:.1%})"
