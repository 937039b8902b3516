"""Checks of a config's optimizer and scheduler before the first step, and the score for the scheduler."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from endoscope.errors import ConfigError, closest
from endoscope.runners.config.kinds import type_name
from endoscope.runners.config.settings import Settings
from endoscope.runners.criterion import CriterionError


def check_optimizer(optimizer: Any, *, with_closure: bool) -> None:
    """with_closure: whether the trainer can compute the loss several times in a step."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer: found {type_name(optimizer)}; expected a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty and not with_closure:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} computes the loss several times in a step, which this "
            "trainer does not do; choose another, or write a trainer that overrides _optimize"
        )


def check_scheduler(scheduler: Any, settings: Settings, directions: Mapping[str, str]) -> None:
    """directions: for each score of the metric, 'higher' or 'lower'."""
    if not (scheduler is None or (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict"))):
        raise ConfigError(
            f"scheduler: found {type_name(scheduler)}; expected a scheduler like those of torch.optim.lr_scheduler"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        _check_plateau(scheduler, settings, directions)
    elif settings.scheduler_score is not None:
        raise ConfigError("scheduler_score: only ReduceLROnPlateau uses a score; remove it")


def _check_plateau(scheduler: ReduceLROnPlateau, settings: Settings, directions: Mapping[str, str]) -> None:
    name = settings.scheduler_score
    if settings.scheduler_step == "step":
        raise ConfigError("scheduler_step: ReduceLROnPlateau needs the scores of an epoch; set it to 'epoch'")
    if name is not None and name not in directions:
        raise ConfigError(f"scheduler_score: the metric has no score {name!r}{closest(name, directions)}")
    score = name or "loss"
    better = directions.get(score, "lower")
    mode = "max" if better == "higher" else "min"
    if scheduler.mode != mode:
        raise ConfigError(
            f"scheduler.args.mode: found {scheduler.mode!r}, but ReduceLROnPlateau uses the score {score!r}, of "
            f"which {better} is better\nset it to {mode!r}, or scheduler_score to one of {', '.join(directions)}"
        )


def scheduler_score(name: str | None, scores: Mapping[str, float], training_loss: float) -> float:
    """The number for `ReduceLROnPlateau`: the score ``name``, else the score "loss", else the training loss."""
    if name is None:
        return scores.get("loss", training_loss)
    if name not in scores:
        raise ConfigError(f"scheduler_score: the metric gave no {name!r} over all datapoints{closest(name, scores)}")
    return scores[name]


def check_loss(loss: Any, trainer: str) -> None:
    """Refuse anything but a scalar with a gradient as the result of a trainer's ``_train_step``."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    if not isinstance(loss, torch.Tensor):
        result = "None" if loss is None else type_name(loss)
    else:
        result = "a loss without a gradient" if loss.numel() == 1 else f"a tensor of shape {tuple(loss.shape)}"
    raise CriterionError(
        f"{trainer}._train_step returned {result}; expected the loss of the batch, a scalar tensor with a gradient: "
        "return self.criterion(datapoint['outputs'], datapoint['labels'])"
    )
