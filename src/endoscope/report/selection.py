"""Selection: which epochs and datapoints of the runs are on a page, checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import ConfigError, closest
from endoscope.runs import Epoch, Run
from endoscope.runs.datapoint import Datapoint

WORST = 12
MOST_DATAPOINTS = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """What of each run is exported."""

    datapoints: tuple[int, ...] | None = None
    """By index; by default the worst ones."""
    worst: int = WORST
    metric: str | None = None
    """The score that decides which datapoints are the worst; by default the first one of each run."""
    epochs: Literal["last", "all"] | tuple[int, ...] = "last"

    @classmethod
    def of(cls, *, datapoints: str | None, worst: int | None, metric: str | None, epochs: str | None) -> Selection:
        """From the options of the command line.

        >>> Selection.of(datapoints="3,17", worst=None, metric=None, epochs="0,4")
        Selection(datapoints=(3, 17), worst=12, metric=None, epochs=(0, 4))
        """
        if datapoints is not None and worst is not None:
            raise ConfigError("--datapoints and --worst were both given; choose one of them")
        indices = _numbers(datapoints, "--datapoints") if datapoints is not None else None
        if max(len(indices or ()), worst or 0) > MOST_DATAPOINTS:
            raise ConfigError(f"at most {MOST_DATAPOINTS} datapoints fit into one page; choose fewer")
        return cls(indices, WORST if worst is None else worst, metric, _which_epochs(epochs))

    def epochs_of(self, run: Run) -> list[Epoch]:
        """The selected epochs of a run. An evaluation has only one, which is always selected."""
        epochs = run.epochs
        if run.kind == "evaluation" or self.epochs == "all":
            return epochs
        if isinstance(self.epochs, tuple):
            return [epoch for epoch in epochs if epoch.number in self.epochs]
        scored = next((epoch for epoch in reversed(epochs) if epoch.scores is not None), None)
        return [scored] if scored is not None else epochs[-1:]

    def check(self, runs: Sequence[Run]) -> None:
        """ConfigError for epochs, scores and datapoints that no run has, and for a page that would be empty."""
        self._check_epochs(runs)
        self._check_metric(runs)
        known = reduce(np.union1d, [self._known(run) for run in runs])
        exist = f"there are {len(known):,}, from {known[0]} to {known[-1]}" if len(known) else "there are none yet"
        unknown = next((idx for idx in self.datapoints or () if idx not in known), None)
        if unknown is not None:
            raise ConfigError(f"no run has a datapoint {unknown} in these epochs; {exist}")
        if self.datapoints is None and not any(map(_has_scores_or_losses, runs)):
            hint = f"{exist}; choose some with --datapoints" if len(known) else "nothing was captured either"
            raise ConfigError(f"there is nothing to export: no run has a score or a loss yet; {hint}")

    def _check_epochs(self, runs: Sequence[Run]) -> None:
        if not isinstance(self.epochs, tuple):
            return
        numbers = {epoch.number for run in runs for epoch in run.epochs if epoch.number is not None}
        absent = [number for number in self.epochs if number not in numbers]
        if absent:
            exist = f"there are {min(numbers)} to {max(numbers)}" if numbers else "there are none; leave --epochs out"
            raise ConfigError(f"no run has an epoch {absent[0]}; {exist}")

    def _check_metric(self, runs: Sequence[Run]) -> None:
        if self.metric is None:
            return
        tables = [table for run in runs for epoch in self.epochs_of(run) if (table := epoch.scores) is not None]
        known = [*dict.fromkeys(name for table in tables for name in table.values)]
        if tables and self.metric not in known:
            near = closest(self.metric, known) or f"; there are {', '.join(map(repr, known))}"
            raise ConfigError(f"no datapoint has the score {self.metric!r}{near}")

    def _known(self, run: Run) -> NDArray[np.int64]:
        """The datapoints of the selected epochs that have a score or a capture."""
        epochs = self.epochs_of(run)
        scored = [table.indices for epoch in epochs if (table := epoch.scores) is not None]
        captured = [indices for epoch in epochs for indices in Datapoint(run, epoch, 0).stored().values()]
        return reduce(np.union1d, [np.empty(0, np.int64), *scored, *captured])


def _which_epochs(option: str | None) -> Literal["last", "all"] | tuple[int, ...]:
    if option is None or option == "last":
        return "last"
    return "all" if option == "all" else _numbers(option, "--epochs", others="last, all, or ")


def _numbers(option: str, name: str, *, others: str = "") -> tuple[int, ...]:
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", option):
        raise ConfigError(f"{name} is {option[:80]!r}; expected {others}whole numbers with commas, such as 3,17,42")
    return tuple(dict.fromkeys(map(int, option.split(","))))


def _has_scores_or_losses(run: Run) -> bool:
    return any(epoch.scores is not None or epoch.losses for epoch in run.epochs)
