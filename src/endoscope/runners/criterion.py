"""BaseCriterion: the loss to train on, and a record of its values that does not block the loop."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from endoscope.deferred import Deferred
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.runners.config.kinds import shown


class CriterionError(EndoscopeError, ValueError):
    """A criterion or a training step returned something that is not a loss, or got inputs it cannot work with."""


@dataclass(frozen=True, slots=True)
class LossSummary:
    """The losses of an epoch.

    >>> LossSummary.of([3.0, 1.0]).mean
    2.0

    ``mean`` is NaN when a value is not finite; ``non_finite`` counts such values, ``finite_mean`` is over the others.
    ``min`` and ``max`` are NaN when a value is NaN. Without values all numbers are NaN.
    """

    mean: float
    finite_mean: float
    first: float
    last: float
    min: float
    max: float
    count: int
    non_finite: int
    values: list[float]
    parts: dict[str, LossSummary] = field(default_factory=dict)
    """The same for each named part of the loss, over the steps that had this part."""

    @classmethod
    def of(cls, values: Sequence[float], parts: Mapping[str, Sequence[float]] = MappingProxyType({})) -> LossSummary:
        """The summary of these values, in their order."""
        values = list(values)
        finite = [v for v in values if math.isfinite(v)]
        finite_mean = math.fsum(v / len(finite) for v in finite) if finite else math.nan  # the sum may be too large
        ordered = values or [math.nan]
        comparable = [math.nan] if any(map(math.isnan, ordered)) else ordered
        return cls(
            mean=finite_mean if len(finite) == len(values) else math.nan,
            finite_mean=finite_mean,
            first=ordered[0],
            last=ordered[-1],
            min=min(comparable),
            max=max(comparable),
            count=len(values),
            non_finite=len(values) - len(finite),
            values=values,
            parts={name: cls.of(part) for name, part in parts.items()},
        )

    @classmethod
    def averaged(cls, ranks: Sequence[Mapping[str, Sequence[float]]]) -> LossSummary:
        """The mean over the ranks for each step, from `by_name` of each rank; of the parts that all ranks have."""
        names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
        mean = {name: [sum(v) / len(v) for v in zip(*(rank[name] for rank in ranks), strict=False)] for name in names}
        return cls.of(mean.pop("loss"), mean)

    def by_name(self) -> dict[str, list[float]]:
        """The loss of each batch and each named part of it."""
        return {"loss": self.values, **{name: part.values for name, part in self.parts.items() if name != "loss"}}


class BaseCriterion(torch.nn.Module, ABC):
    """A loss: implement `forward`.

    >>> class Distance(BaseCriterion):
    ...     def forward(self, outputs, labels):
    ...         return (outputs - labels).abs().mean()
    >>> criterion = Distance()
    >>> loss = criterion(outputs, labels)      # a scalar tensor with a gradient
    >>> criterion.add_to_buffer(loss)          # does not wait for the device
    >>> criterion.summarize().mean

    `forward` may return a dict of named scalars instead: calling the criterion then returns their sum, and the next
    `add_to_buffer` also records the parts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._losses = Deferred(_as_floats)
        self._parts: dict[str, Tensor] = {}  # of the last call, until they are recorded

    @abstractmethod
    def forward(self, outputs: Any, labels: Any) -> Tensor | dict[str, Tensor]:
        """The loss of a batch, reduced to a scalar; or its named parts."""

    def __call__(self, outputs: Any, labels: Any) -> Tensor:
        loss = super().__call__(outputs, labels)
        self._parts = {}
        if not isinstance(loss, Mapping):
            self._check(loss, "loss")
            return loss  # type: ignore[no-any-return]
        if not loss:
            raise CriterionError(f"{type(self).__name__} returned an empty dict; give at least one part of the loss")
        for name, part in loss.items():
            self._check(part, f"part {name!r} of its loss")
        self._parts = {name: part.reshape(()) for name, part in loss.items()}  # (1,) would make the sum (1,)
        parts = tuple(self._parts.values())
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]

    def add_to_buffer(self, loss: Tensor) -> None:
        """Record a loss, detached, without waiting for the device."""
        self._losses.put((loss, self._parts))
        self._parts = {}

    def reset_buffer(self) -> None:
        """Forget the recorded losses."""
        self._losses.reset()
        self._parts = {}

    def summarize(self) -> LossSummary:
        """The losses recorded since the last `reset_buffer`; waits for the device."""
        recorded = self._losses.values()
        parts: dict[str, list[float]] = {}
        for _, named in recorded:
            for name, part in named.items():
                parts.setdefault(name, []).append(part)
        return LossSummary.of([loss for loss, _ in recorded], parts)

    def _check(self, loss: Any, what: str) -> None:
        who = f"{type(self).__name__}: the {what}"
        if not isinstance(loss, Tensor):
            raise CriterionError(f"{who} is {shown(loss)}; expected a scalar tensor, or a dict of them")
        if loss.numel() != 1:
            raise CriterionError(f"{who} has shape {tuple(loss.shape)}; expected a scalar, as reduction='mean' gives")


def _as_floats(recorded: tuple[Any, dict[str, Any]]) -> tuple[float, dict[str, float]]:
    loss, parts = recorded
    return float(loss), {name: float(part) for name, part in parts.items()}


class TorchCriterion(BaseCriterion):
    """Any loss of torch, a module or a function, as a criterion.

    >>> criterion = TorchCriterion(torch.nn.CrossEntropyLoss())
    >>> config = {"class": TorchCriterion, "args": {"criterion": {"class": torch.nn.CrossEntropyLoss, "args": {}}}}

    Where the outputs are a dict, as Hugging Face models return them, a loss of torch gets their ``logits``. A loss of
    your own gets the outputs unchanged.
    """

    def __init__(self, criterion: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        if not callable(criterion) or isinstance(criterion, type):
            raise ConfigError(
                f"TorchCriterion: criterion is {shown(criterion)}; expected a loss module such as "
                "torch.nn.CrossEntropyLoss(), or a function of outputs and labels"
            )
        self.criterion = criterion
        self._takes_tensors = _is_from_torch(criterion)

    def forward(self, outputs: Any, labels: Any) -> Tensor:
        if self._takes_tensors and isinstance(outputs, Mapping):
            if "logits" not in outputs:
                name = getattr(self.criterion, "__name__", type(self.criterion).__name__)
                raise CriterionError(
                    f"{name}: the outputs have no 'logits', only {sorted(map(str, outputs))}; "
                    "write a criterion of your own, which gets the dict"
                )
            outputs = outputs["logits"]
        return self.criterion(outputs, labels)


def _is_from_torch(criterion: Any) -> bool:
    """Whether its code is part of torch, and so takes tensors only."""
    while isinstance(criterion, functools.partial):
        criterion = criterion.func
    function = type(criterion).forward if isinstance(criterion, torch.nn.Module) else criterion
    return str(getattr(function, "__module__", "")).split(".")[0] == "torch"


def as_criterion(criterion: Any) -> BaseCriterion:
    """``criterion`` itself if it is a `BaseCriterion`, otherwise wrapped in a `TorchCriterion`.

    >>> as_criterion(torch.nn.MSELoss()).criterion
    MSELoss()
    """
    return criterion if isinstance(criterion, BaseCriterion) else TorchCriterion(criterion)
