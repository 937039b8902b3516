"""A small CNN with everything that a twin must leave alone, and images for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def cnn(classes: int = 6, *, inplace: bool = False, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.ReLU(inplace),
        nn.Dropout(dropout),
        nn.Conv2d(12, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


def images(batch: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, 14, 14, generator=torch.Generator().manual_seed(seed))
