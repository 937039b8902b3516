"""Noisy pictures of circles, squares and triangles with the class of each pixel, and a small U-Net to segment them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SIZE = 64
NOISE = 0.25


class Shapes(Dataset[dict[str, Any]]):
    """``count`` pictures from index ``first``; an index always gives the same picture."""

    class_names = ("background", "circle", "square", "triangle")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> dict[str, Any]:
        if not 0 <= k < self.count:
            raise IndexError(k)
        idx = self.first + k
        image, mask = draw(idx)
        return {"inputs": torch.from_numpy(image)[None], "labels": torch.from_numpy(mask), "meta_info": {"idx": idx}}


def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A picture of one to three shapes, float32 (64, 64), with the class of each pixel. Later shapes are on top."""
    random = np.random.default_rng(number)
    image = np.zeros((SIZE, SIZE))
    mask = np.zeros((SIZE, SIZE), dtype=np.int64)
    for _ in range(random.integers(1, 4)):
        kind = random.integers(1, 4)
        inside = (circle, square, triangle)[kind - 1](*random.uniform((12, 12, 7), (52, 52, 14)))
        image[inside] = random.uniform(0.5, 1.0)
        mask[inside] = kind
    return (image + NOISE * random.standard_normal(image.shape)).astype(np.float32), mask


Y, X = np.mgrid[:SIZE, :SIZE]


def circle(y: float, x: float, radius: float) -> np.ndarray:
    return (Y - y) ** 2 + (X - x) ** 2 <= radius**2


def square(y: float, x: float, radius: float) -> np.ndarray:
    return np.maximum(abs(Y - y), abs(X - x)) <= 0.9 * radius


def triangle(y: float, x: float, radius: float) -> np.ndarray:
    """It points upwards."""
    return (Y - y <= 0.8 * radius) & (2 * abs(X - x) <= Y - y + radius)


class Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()


class UNet(nn.Module):
    """Three resolutions down and up again, with skip connections."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.down1 = Block(1, width)
        self.down2 = Block(width, 2 * width)
        self.down3 = Block(2 * width, 4 * width)
        self.bottom = Block(4 * width, 4 * width)
        self.up3 = Block(8 * width, 2 * width)
        self.up2 = Block(4 * width, width)
        self.up1 = Block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.shrink = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.shrink(a))
        c = self.down3(self.shrink(b))
        d = self.bottom(self.shrink(c))
        d = self.up3(torch.cat((self.grow(d), c), 1))
        d = self.up2(torch.cat((self.grow(d), b), 1))
        d = self.up1(torch.cat((self.grow(d), a), 1))
        logits: Tensor = self.head(d)
        return logits
