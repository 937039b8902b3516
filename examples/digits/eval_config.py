"""Evaluate the last checkpoint of ``config.py`` on digits outside the training data."""

import torch

from endoscope.commands.digits import DEBUGGER, DigitNet, Digits
from endoscope.runners.metrics.classification import ClassificationMetric

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/digits-eval",
    "overwrite": True,
    "checkpoint": "runs/digits",
    "model": {"class": DigitNet},
    "eval_dataset": {"class": Digits, "args": {"split": "eval"}},
    "metric": {"class": ClassificationMetric},
    "debugger": DEBUGGER,
}
