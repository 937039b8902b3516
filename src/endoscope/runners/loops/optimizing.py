"""What a config's optimizer and scheduler must be for a trainer to work with them; mistakes are found before a step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from endoscope.errors import ConfigError, closest
from endoscope.runners.config.settings import Settings


def check_optimizer(optimizer: Any, *, with_closure: bool) -> None:
    """with_closure: whether the trainer can compute the loss several times in a step."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer: found a {type(optimizer).__name__}; expected a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty and not with_closure:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} computes the loss several times in a step, which this "
            "trainer does not do; choose another, or write a trainer with an _optimize of its own"
        )


def check_scheduler(scheduler: Any, settings: Settings, directions: Mapping[str, str]) -> None:
    """directions: of the metric's scores, each 'higher' or 'lower'."""
    if not (scheduler is None or (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict"))):
        found = type(scheduler).__name__
        raise ConfigError(f"scheduler: found a {found}; expected one of torch.optim.lr_scheduler, or alike")
    wanted = settings.scheduler_score
    if not isinstance(scheduler, ReduceLROnPlateau):
        if wanted is not None:
            raise ConfigError("scheduler_score: only ReduceLROnPlateau looks at a score; remove it")
        return
    if settings.scheduler_step == "step":
        raise ConfigError("scheduler_step: ReduceLROnPlateau looks at the scores of an epoch; set it to 'epoch'")
    if wanted is not None and wanted not in directions:
        raise ConfigError(f"scheduler_score: the metric has no score {wanted!r}{closest(wanted, directions)}")
    score = wanted or "loss"
    mode = "max" if directions.get(score) == "higher" else "min"
    if scheduler.mode != mode:
        better = "higher" if mode == "max" else "lower"
        raise ConfigError(
            f"scheduler.args.mode: found {scheduler.mode!r}, and ReduceLROnPlateau looks at {score!r}, of "
            f"which {better} is better\nset it to {mode!r}, or scheduler_score to one of {', '.join(directions)}"
        )


def scheduler_score(wanted: str | None, scores: Mapping[str, float], training_loss: float) -> float:
    """What `ReduceLROnPlateau` looks at: the score ``wanted``, else the one called loss, else the training loss."""
    if wanted is None:
        return scores.get("loss", training_loss)
    if wanted not in scores:
        raise ConfigError(
            f"scheduler_score: the metric gave no {wanted!r} over all datapoints{closest(wanted, scores)}"
        )
    return scores[wanted]
