"""Random numbers: every stage of an epoch is seeded, so that a resumed run draws what an uninterrupted one draws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from endoscope.runners.data.datapoints import Datapoints
from endoscope.runners.data.loaders import seed_loader


def seed_stage(seed: int, stage: str, epoch: int, *, rank: int, loader: DataLoader[Any] | None) -> None:
    """Seed torch, numpy, ``random`` and the loader for a stage: "build", "train", "validation" or "evaluation".

    All ranks build the same model and share one order of the data; afterwards each rank has its own random numbers.
    """
    shared = _number(seed, stage, epoch)
    own = shared if stage == "build" else shared + rank
    if loader is not None:
        # Validation has the same order in all epochs, so that the stored datapoints are the same.
        order_epoch = epoch if stage == "train" else 0
        # An iterable dataset may shuffle in its workers and then take its rank's share: the ranks must draw alike.
        draws = own if isinstance(loader.dataset, Datapoints) else shared
        seed_loader(loader, order=_number(seed, f"{stage} order", order_epoch), draws=draws, epoch=order_epoch)
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)


def _number(seed: int, stage: str, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch, *stage.encode())).generate_state(1)[0])
