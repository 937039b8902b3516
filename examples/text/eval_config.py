"""Evaluate the last checkpoint of ``config.py`` on the sixth chapter."""

import torch
from alice import Passages
from looking import DEBUGGER
from transformer import NextCharacterMetric, Transformer

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/text-eval",
    "overwrite": True,
    "checkpoint": "runs/text",
    "model": {"class": Transformer, "args": {"width": 64, "heads": 4, "depth": 2}},
    "eval_dataset": {"class": Passages, "args": {"first_chapter": 6, "last_chapter": 6}},
    "metric": {"class": NextCharacterMetric},
    "debugger": DEBUGGER,
}
