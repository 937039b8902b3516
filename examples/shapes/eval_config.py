"""Evaluate the last checkpoint of ``config.py`` on pictures outside the training data."""

import torch
from looking import DEBUGGER
from shapes import Shapes, UNet

from endoscope.runners.metrics.segmentation import SegmentationMetric

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/shapes-eval",
    "overwrite": True,
    "checkpoint": "runs/shapes",
    "model": {"class": UNet, "args": {"width": 8}},
    "eval_dataset": {"class": Shapes, "args": {"first": 20_000, "count": 100}},
    "metric": {"class": SegmentationMetric, "args": {"num_classes": 4}},
    "debugger": DEBUGGER,
}
