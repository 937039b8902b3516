"""Train a small CNN to classify scikit-learn's digits, with captures of every second epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from endoscope.commands.digits import DEBUGGER, DigitNet, Digits
from endoscope.runners.metrics.classification import ClassificationMetric

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/digits",
    "epochs": 6,
    "model": {"class": DigitNet},
    "train_dataset": {"class": Digits, "args": {"split": "train"}},
    "val_dataset": {"class": Digits, "args": {"split": "val"}},
    "train_dataloader": {"class": DataLoader, "args": {"batch_size": 32, "shuffle": True}},
    "criterion": {"class": nn.CrossEntropyLoss},
    "metric": {"class": ClassificationMetric},
    "optimizer": {"class": torch.optim.Adam, "args": {"lr": 3e-3}},
    "checkpoint_method": 2,
    "debugger": DEBUGGER,
}
