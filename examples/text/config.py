"""Train a tiny transformer on four chapters of Alice's Adventures in Wonderland, with validation on the fifth."""

import torch
from alice import Passages
from looking import DEBUGGER
from torch.utils.data import DataLoader
from transformer import NextCharacterMetric, Transformer, next_character_loss

torch.set_num_threads(1)  # tensors this small are not worth dividing

config = {
    "work_dir": "runs/text",
    "epochs": 6,
    "model": {"class": Transformer, "args": {"width": 64, "heads": 4, "depth": 2}},
    "train_dataset": {"class": Passages, "args": {"first_chapter": 1, "last_chapter": 4, "stride": 16}},
    "val_dataset": {"class": Passages, "args": {"first_chapter": 5, "last_chapter": 5}},
    "train_dataloader": {"class": DataLoader, "args": {"batch_size": 32, "shuffle": True}},
    "criterion": next_character_loss,
    "metric": {"class": NextCharacterMetric},
    "optimizer": {"class": torch.optim.AdamW, "args": {"lr": 3e-3}},
    "clip_norm": 1.0,
    "checkpoint_method": 3,
    "debugger": DEBUGGER,
}
