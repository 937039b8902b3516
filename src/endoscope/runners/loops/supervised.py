"""SupervisedTrainer and SupervisedEvaluator: for datasets of inputs with labels."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.runners.loops.evaluator import BaseEvaluator
from endoscope.runners.loops.trainer import BaseTrainer


class SupervisedTrainer(BaseTrainer):
    """The loss is ``criterion(model(inputs), labels)``."""

    def _train_step(self, datapoint: dict[str, Any]) -> torch.Tensor:
        datapoint["outputs"] = self._forward(datapoint)
        loss: torch.Tensor = self.criterion(datapoint["outputs"], datapoint["labels"])
        return loss


class SupervisedEvaluator(BaseEvaluator):
    """Outputs are ``model(inputs)``; the metric compares them with the labels."""
