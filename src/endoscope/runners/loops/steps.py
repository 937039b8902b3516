"""Steps: which batches make one step of the optimizer, and when an epoch ends for ranks that have unequally many."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from endoscope.runners.loops.distributed import Ranks

COUNT_MOST = 1000
COUNT_S = 10.0
"""Batches that are left out are counted up to this number, or for so long."""


class Steps:
    """Groups batches into steps of ``accumulate`` batches."""

    def __init__(self, accumulate: int) -> None:
        self._group = accumulate
        self._left_out_told = self._length_told = False

    def over(
        self, batches: Iterator[Any], total: int | None, *, ranks: Ranks, epoch: int
    ) -> Iterator[tuple[Any, int, bool]]:
        """Each batch, how many make its step (the last may have fewer), and whether it completes it.

        total: how many batches there are; None where that shows only at their end.
        """
        group = self._group
        if total is not None:
            came = 0
            for batch in batches:
                parts = min(group, total - came + came % group) if came < total else group
                yield batch, parts, (came + 1) % group == 0 or came + 1 == total
                came += 1
            if came and came != total and group > 1:
                self._tell_length(total, came)
            return
        step = list(islice(batches, group))  # how many are left is known only when they are there
        while ranks.all(bool(step)):  # a rank alone in a step would wait for the others' gradients for ever
            for k, batch in enumerate(step, 1):
                yield batch, len(step), k == len(step)
            step = list(islice(batches, group))
        if ranks.several:
            self._tell_left_out(len(step), batches, ranks, epoch)

    def _tell_length(self, total: int, came: int) -> None:
        """Warn, once: the last batches may have made no step, or a smaller one."""
        if not self._length_told:
            self._length_told = True
            warnings.warn(
                f"train_dataloader: its len() says {total} batches, and it gave {came}; with 'accumulate' the steps "
                "are made by that number: some batches may count for less in theirs, or be in none; mend its __len__",
                stacklevel=2,
            )

    def _tell_left_out(self, drawn: int, batches: Iterator[Any], ranks: Ranks, epoch: int) -> None:
        """Warn, once, when some ranks had batches that the others had no counterpart for; ``drawn`` and all to come."""
        told, more = self._left_out_told, False
        if drawn and not told:
            drawn, more = _counted(batches, drawn)
        gathered = ranks.gather((drawn, more))
        left = sum(count for count, _ in gathered)
        self._left_out_told = told or bool(drawn or left)
        if left and not told:
            ended = ", ".join(str(rank) for rank, (count, _) in enumerate(gathered) if not count)
            warnings.warn(
                f"train_dataset: it gave fewer batches to rank {ended} than to others; epoch "
                f"{epoch} ended there for all, and {'more than ' if any(m for _, m in gathered) else ''}{left} "
                "batches of the others were left out, as will happen in each epoch; give every rank equally many",
                stacklevel=2,
            )


def _counted(batches: Iterator[Any], count: int) -> tuple[int, bool]:
    """How many batches there are with ``count`` that are known, and whether there are more: not all of a stream that
    may have no end is read for a warning."""
    until = time.monotonic() + COUNT_S
    for _ in batches:
        count += 1
        if count >= COUNT_MOST or time.monotonic() > until:
            return count, True
    return count, False
