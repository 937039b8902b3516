"""Train a small U-Net to segment circles, squares and triangles in noise."""

import torch
from looking import DEBUGGER
from shapes import Shapes, UNet
from torch import nn
from torch.utils.data import DataLoader

from endoscope.runners.metrics.segmentation import SegmentationMetric

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/shapes",
    "epochs": 6,
    "model": {"class": UNet, "args": {"width": 8}},
    "train_dataset": {"class": Shapes, "args": {"first": 0, "count": 600}},
    "val_dataset": {"class": Shapes, "args": {"first": 10_000, "count": 100}},
    "train_dataloader": {"class": DataLoader, "args": {"batch_size": 8, "shuffle": True}},
    "criterion": {"class": nn.CrossEntropyLoss},
    "metric": {"class": SegmentationMetric, "args": {"num_classes": 4}},
    "optimizer": {"class": torch.optim.Adam, "args": {"lr": 5e-3}},
    "scheduler": {"class": torch.optim.lr_scheduler.ExponentialLR, "args": {"gamma": 0.7}},
    "checkpoint_method": 3,
    "debugger": DEBUGGER,
}
