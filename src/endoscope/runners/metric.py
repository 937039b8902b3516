"""BaseMetric: scores of every datapoint, gathered without the loop waiting, and joined over ranks.

A metric is a pure function of a datapoint (or a batch) and a record of what it returned. The record keeps whole
batches as they came; what belongs to which datapoint is worked out once, by `BaseMetric.merged`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor

from endoscope.errors import ConfigError, DatapointError, EndoscopeError
from endoscope.runners.buffer import AsyncBuffer
from endoscope.runs.scores import Direction, Scores


class MetricError(EndoscopeError, ValueError):
    """A metric was given, or returned, what it cannot work with."""


class BaseMetric(ABC):
    """Scores datapoints: implement ``__call__`` and say in `DIRECTIONS` what it returns.

    >>> class Distance(BaseMetric):
    ...     DIRECTIONS = {"distance": "lower"}
    ...     def __call__(self, datapoint):
    ...         return {"distance": (datapoint["outputs"] - datapoint["labels"]).abs().flatten(1).mean(1)}
    >>> metric = Distance()
    >>> scores = metric(datapoint)                                       # {'distance': a tensor of shape (B,)}
    >>> metric.add_to_buffer(scores, datapoint["meta_info"]["idx"])      # never waits for the device
    >>> metric.summarize().worst("distance", 10)

    What can only be computed over all datapoints has two ways. Exact: return what it takes beside the scores, as
    tensors of shape (B, ...) that `EVIDENCE` names; `aggregate` gets those of all datapoints, each once. Cheap: keep
    totals on the device, and give them in `sums`; a datapoint that a sampler repeats is in them as often as it came.
    """

    DIRECTIONS: Mapping[str, Direction] = {}
    """The scores of a datapoint, and whether higher or lower ones are better."""
    AGGREGATED: Mapping[str, Direction] = {}
    """Scores that exist only over all datapoints: what `aggregate` adds to the means."""
    EVIDENCE: ClassVar[Sequence[str]] = ()
    """What is returned with the scores for `aggregate` alone, with the shape (B, ...)."""

    BY_CLASS: ClassVar[Sequence[str]] = ()
    """Scores that exist for each class: ``iou`` when there are ``iou/0``, ``iou/1`` and so on. Shown with its name."""

    _buffer: AsyncBuffer[list[Tensor]]
    """Of each batch the indices, and then what `_columns` names, in that order."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_directions(cls)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Here and not in __init__, which subclasses may forget to call.
        self = super().__new__(cls)
        self._buffer = AsyncBuffer(_unchanged)
        return self

    @abstractmethod
    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        """The scores of each datapoint of a batch, shape (B,), on the device; must not wait for it."""

    def add_to_buffer(self, scores: Mapping[str, Tensor], idx: Tensor | Sequence[int] | int) -> None:
        """Record the scores of the datapoints ``idx`` without waiting. Raises what went wrong with earlier ones."""
        indices = _indices(idx)
        count = len(indices)
        if scores.keys() != {*self.DIRECTIONS, *self.EVIDENCE}:
            self._explain_names(scores)
        for name, score in scores.items():
            shape = score.shape if isinstance(score, Tensor) else None
            if not shape or shape[0] != count or (len(shape) > 1 and name in self.DIRECTIONS):
                self._explain_shape(name, score, count)
        self._buffer.put([indices, *map(scores.__getitem__, self._columns())])

    def reset_buffer(self) -> None:
        """Forget what was recorded. A metric that has `sums` resets them here too."""
        self._buffer.reset()

    def summarize(self) -> Scores:
        """The scores of what was recorded since the last `reset_buffer`; waits for it."""
        return self.merged([self.partial()])

    def partial(self) -> dict[str, Any]:
        """What this rank recorded, as a dict of host tensors that ``torch.distributed.gather_object`` can send."""
        batches = self._buffer.values()
        idx, *columns = map(torch.cat, zip(*batches, strict=True)) if batches else [torch.empty(0, dtype=torch.int64)]
        return {
            "idx": idx,
            "values": dict(zip(self._columns(), columns, strict=True)) if batches else {},
            "sums": {name: total.detach().cpu() for name, total in self.sums().items()},
        }

    def merged(self, partials: Sequence[Mapping[str, Any]]) -> Scores:
        """The scores over all ranks, from the `partial` of each, in the order of the ranks.

        Every datapoint counts once. One that came twice (samplers pad the last batch) counts as it came first; its
        scores from a second rank, which may differ in the last bits, are left out.
        """
        filled = [partial for partial in partials if len(partial["idx"])]
        every = torch.cat([partial["idx"] for partial in filled]) if filled else torch.empty(0, dtype=torch.int64)
        idx, first = np.unique(every.numpy(), return_index=True)
        chosen = torch.from_numpy(first)

        def joined(name: str) -> Tensor:
            if not filled:
                return torch.empty(0, dtype=torch.float64)
            return torch.cat([partial["values"][name] for partial in filled])[chosen]

        scores = {name: joined(name).double() for name in self.DIRECTIONS}
        totals: dict[str, Tensor] = {}
        for partial in partials:
            for name, total in partial["sums"].items():
                totals[name] = totals[name] + total if name in totals else total
        aggregated = self.aggregate(scores, {name: joined(name) for name in self.EVIDENCE}, totals)
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
            per_datapoint={i: dict(zip(scores, row, strict=True)) for i, row in zip(idx.tolist(), rows, strict=True)},
        )

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """One number over all datapoints for each score: the mean, which is NaN if one of them is.

        ``scores`` are float64 of shape (N,), ``evidence`` has the shape (N, ...), both with each datapoint once and in
        the order of the indices; ``sums`` are those of all ranks added up. Without datapoints a mean is NaN.
        """
        return {name: float(score.mean()) for name, score in scores.items()}

    def sums(self) -> dict[str, Tensor]:
        """Totals that a subclass keeps on the device, such as a confusion matrix; those of all ranks are added."""
        return {}

    def _columns(self) -> list[str]:
        """In an order that does not depend on how a metric of the user's makes its `DIRECTIONS`."""
        return sorted({*self.DIRECTIONS, *self.EVIDENCE})

    def _explain_names(self, scores: Mapping[str, Tensor]) -> None:
        who = type(self).__name__
        if missing := sorted({*self._columns()} - scores.keys()):
            raise MetricError(f"{who} did not return {missing[0]!r}, which its DIRECTIONS or EVIDENCE names")
        extra = sorted(scores.keys() - {*self._columns()})[0]
        raise MetricError(
            f"{who} returned {extra!r}, which has no direction; name it in DIRECTIONS as 'higher' or 'lower'"
        )

    def _explain_shape(self, name: str, score: Any, count: int) -> None:
        expected = f"({count},)" if name in self.DIRECTIONS else f"({count}, ...)"
        found = f"has shape {tuple(score.shape)}" if isinstance(score, Tensor) else f"is {type(score).__name__}"
        raise MetricError(
            f"{type(self).__name__}: {name!r} {found}; expected a tensor of shape {expected}, "
            f"one for each of the {count} datapoints"
        )


def check_directions(metric: BaseMetric | type[BaseMetric]) -> None:
    """Refuse a direction that is none. Of a class, when it is made; of a metric, which may have its own, when it is."""
    who = metric if isinstance(metric, type) else type(metric)
    for name in ("DIRECTIONS", "AGGREGATED"):
        for score, direction in getattr(metric, name).items():
            if direction not in get_args(Direction):
                raise ConfigError(f"{who.__name__}.{name}[{score!r}] is {direction!r}; expected 'higher' or 'lower'")


def _indices(idx: Any) -> Tensor:
    """The indices as a tensor of integers, shape (B,)."""
    if isinstance(idx, Tensor) and idx.dtype is torch.int64 and idx.ndim == 1:
        return idx
    try:
        indices = torch.as_tensor(idx).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as e:
        raise DatapointError(f"idx is {type(idx).__name__} {str(idx)[:40]!r}; {_EXPECTED}") from e
    if indices.dtype is not torch.int64:
        if indices.dtype not in _INTEGERS:
            raise DatapointError(f"idx holds {indices.dtype}; {_EXPECTED}")
        indices = indices.long()
    return indices


def _unchanged(value: Any) -> Any:
    return value


_EXPECTED = "expected the integer index of each datapoint"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
