"""Passages of a book, with the next character for each of their characters."""

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

BOOK = Path(__file__).with_name("alice.txt").read_text()
CHARACTERS = sorted(set(BOOK))
LENGTH = 64
"""Length of a passage in characters."""


class Passages(Dataset[dict[str, Any]]):
    """Passages of some chapters, one every ``stride`` characters; ``idx`` is the position in the book."""

    class_names = tuple(map(repr, CHARACTERS))

    def __init__(self, first_chapter: int, last_chapter: int, stride: int = LENGTH) -> None:
        ends = [*_chapters(), len(BOOK)]
        self._places = range(ends[first_chapter - 1], ends[last_chapter] - LENGTH, stride)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, k: int) -> dict[str, Any]:
        idx = self._places[k]
        codes = torch.tensor([CHARACTERS.index(c) for c in BOOK[idx : idx + LENGTH + 1]])
        text = BOOK[idx : idx + LENGTH]
        meta_info = {"idx": idx, "text": text, "tokens": [*text]}
        return {"inputs": codes[:-1], "labels": codes[1:], "meta_info": meta_info}


def _chapters() -> list[int]:
    """Where each chapter begins."""
    return [at for at in range(len(BOOK)) if BOOK.startswith("CHAPTER ", at)]
