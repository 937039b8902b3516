"""BaseMetric: scores of every datapoint, recorded without blocking the loop and merged over ranks.

A metric is a pure function of a batch and a record of what it returned. The record keeps complete batches;
`BaseMetric.merged` assigns the rows to datapoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor

from endoscope.deferred import Deferred
from endoscope.errors import ConfigError, DatapointError, EndoscopeError
from endoscope.runners.config.kinds import shown
from endoscope.runs.scores import Direction, Scores


class MetricError(EndoscopeError, ValueError):
    """A metric got or returned something that it cannot work with."""


class BaseMetric(ABC):
    """Scores datapoints: implement ``__call__`` and name in `DIRECTIONS` what it returns.

    >>> class Distance(BaseMetric):
    ...     DIRECTIONS = {"distance": "lower"}
    ...     def __call__(self, datapoint):
    ...         return {"distance": (datapoint["outputs"] - datapoint["labels"]).abs().flatten(1).mean(1)}
    >>> metric = Distance()
    >>> scores = metric(datapoint)                                       # {'distance': a tensor of shape (B,)}
    >>> metric.add_to_buffer(scores, datapoint["meta_info"]["idx"])      # does not wait for the device
    >>> metric.summarize().worst("distance", 10)

    A number over all datapoints can be computed in two ways. Exact: return small tensors of shape (B, ...) beside the
    scores and name them in `EVIDENCE`; `aggregate` gets them for all datapoints, each once. Cheap: keep totals on the
    device and return them from `sums`; a datapoint that a sampler repeats counts each time.
    """

    DIRECTIONS: Mapping[str, Direction] = {}
    """The scores of a datapoint, and whether higher or lower is better."""
    AGGREGATED: Mapping[str, Direction] = {}
    """Scores that exist only over all datapoints: those that `aggregate` adds to the means."""
    EVIDENCE: ClassVar[Sequence[str]] = ()
    """What ``__call__`` returns for `aggregate` alone, each of shape (B, ...)."""
    BY_CLASS: ClassVar[Sequence[str]] = ()
    """Scores that exist for each class, shown with its name: ``iou`` for ``iou/0``, ``iou/1`` and so on."""

    _buffer: Deferred[list[Tensor]]
    """For each batch the indices, then the tensors that `_columns` names, in that order."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_directions(cls)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__: subclasses may forget to call it.
        self = super().__new__(cls)
        self._buffer = Deferred(list)
        return self

    @abstractmethod
    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        """The scores of each datapoint of a batch, shape (B,), on the device. Should not wait for the device."""

    def add_to_buffer(self, scores: Mapping[str, Tensor], idx: Tensor | Sequence[int] | int) -> None:
        """Record the scores of the datapoints ``idx`` without waiting for the device."""
        indices = _indices(idx)
        self._check(scores, len(indices))
        self._buffer.put([indices, *map(scores.__getitem__, self._columns())])

    def reset_buffer(self) -> None:
        """Forget the recorded scores. A metric that has `sums` resets them here too."""
        self._buffer.reset()

    def summarize(self) -> Scores:
        """The scores recorded since the last `reset_buffer`; waits for the device."""
        return self.merged([self.partial()])

    def partial(self) -> dict[str, Any]:
        """What this rank recorded: a dict of host tensors, fit for ``torch.distributed.gather_object``."""
        batches = self._buffer.values()
        idx, *columns = map(torch.cat, zip(*batches, strict=True)) if batches else [torch.empty(0, dtype=torch.int64)]
        return {
            "idx": idx,
            "values": dict(zip(self._columns(), columns, strict=True)) if batches else {},
            "sums": {name: total.detach().cpu() for name, total in self.sums().items()},
        }

    def merged(self, partials: Sequence[Mapping[str, Any]]) -> Scores:
        """The scores over all ranks, from the `partial` of each, in the order of the ranks.

        Every datapoint counts once. Of one that was scored several times (samplers pad the last batch) the first
        scores count; those of a second rank may differ in the last bits.
        """
        idx, columns = self._each_once([partial for partial in partials if len(partial["idx"])])
        scores = {name: columns[name].double() for name in self.DIRECTIONS}
        totals = _totals(partials)
        aggregated = self.aggregate(scores, {name: columns[name] for name in self.EVIDENCE}, totals)
        directions = {**self.DIRECTIONS, **self.AGGREGATED}
        if unknown := sorted(aggregated.keys() - directions.keys()):
            raise MetricError(
                f"{type(self).__name__}.aggregate returned {unknown[0]!r}, which has no direction; "
                "name it in AGGREGATED as 'higher' or 'lower'"
            )
        rows = zip(*(score.tolist() for score in scores.values()), strict=True)
        return Scores(
            directions=directions,
            aggregated=aggregated,
            non_finite={name: int((~score.isfinite()).sum()) for name, score in scores.items()},
            per_datapoint={i: dict(zip(scores, row, strict=True)) for i, row in zip(idx, rows, strict=True)},
        )

    def _each_once(self, partials: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, Tensor]]:
        """The indices in order, and the columns with one row for each."""
        if not partials:
            return [], {name: torch.empty(0, dtype=torch.float64) for name in self._columns()}
        idx, first = np.unique(torch.cat([partial["idx"] for partial in partials]).numpy(), return_index=True)
        rows = torch.from_numpy(first)
        columns = {name: torch.cat([partial["values"][name] for partial in partials])[rows] for name in self._columns()}
        return idx.tolist(), columns

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """One number over all datapoints for each score: the mean, which is NaN if one of them is.

        ``scores`` are float64 of shape (N,), ``evidence`` has the shape (N, ...), both with each datapoint once, in the
        order of the indices; ``sums`` are the totals of all ranks, added. Without datapoints a mean is NaN.
        """
        return {name: float(score.mean()) for name, score in scores.items()}

    def sums(self) -> dict[str, Tensor]:
        """Totals that a subclass keeps on the device, such as a confusion matrix; they are added over ranks."""
        return {}

    def _columns(self) -> list[str]:
        """Sorted, so that every rank has the same order, however a metric builds its `DIRECTIONS`."""
        return sorted({*self.DIRECTIONS, *self.EVIDENCE})

    def _check(self, scores: Mapping[str, Tensor], count: int) -> None:
        who, names = type(self).__name__, {*self._columns()}
        if missing := sorted(names - scores.keys()):
            raise MetricError(f"{who} did not return {missing[0]!r}, which its DIRECTIONS or EVIDENCE names")
        if extra := sorted(scores.keys() - names):
            raise MetricError(
                f"{who} returned {extra[0]!r}, which has no direction; name it in DIRECTIONS as 'higher' or 'lower'"
            )
        for name, score in scores.items():
            dims = 1 if name in self.DIRECTIONS else None
            if not isinstance(score, Tensor) or score.shape[:1] != (count,) or score.ndim != (dims or score.ndim):
                expected = f"({count},)" if dims else f"({count}, ...)"
                raise MetricError(
                    f"{who}: {name!r} is {shown(score)}; expected a tensor of shape {expected}, "
                    f"one for each of the {count} datapoints"
                )


def check_directions(metric: BaseMetric | type[BaseMetric]) -> None:
    """Refuse an unknown direction of a class, or of a metric that sets its own."""
    who = metric if isinstance(metric, type) else type(metric)
    for name in ("DIRECTIONS", "AGGREGATED"):
        for score, direction in getattr(metric, name).items():
            if direction not in get_args(Direction):
                raise ConfigError(f"{who.__name__}.{name}[{score!r}] is {direction!r}; expected 'higher' or 'lower'")


def _totals(partials: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The `sums` of all ranks, added."""
    totals: dict[str, Tensor] = {}
    for partial in partials:
        for name, total in partial["sums"].items():
            totals[name] = totals[name] + total if name in totals else total
    return totals


def _indices(idx: Any) -> Tensor:
    """The indices as a tensor of integers, shape (B,)."""
    expected = "expected the integer index of each datapoint"
    try:
        indices = torch.as_tensor(idx).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as e:
        raise DatapointError(f"idx is {shown(idx)}; {expected}") from e
    if indices.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise DatapointError(f"idx holds {indices.dtype}; {expected}")
    return indices.long()
