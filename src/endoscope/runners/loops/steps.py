"""Steps: which batches make one optimizer step, and when an epoch ends for ranks with unequal numbers of batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from endoscope.errors import ConfigError
from endoscope.runners.loops.distributed import Ranks


class Steps:
    """Groups batches into optimizer steps of ``accumulate`` batches."""

    def __init__(self, accumulate: int) -> None:
        self._group = accumulate
        self._warned = False

    def over(self, batches: Iterator[Any], total: int | None, *, ranks: Ranks) -> Iterator[tuple[Any, int, bool]]:
        """Each batch, the number of batches in its step (the last may have fewer), and whether it completes the step.

        total: the number of batches; None if it is known only at the end. Raises `ConfigError` if there is none.
        """
        empty = True
        for step in self._known(batches, total) if total is not None else self._stream(batches, ranks):
            empty = False
            yield step
        if empty:
            where = " on one rank or more" if ranks.several else ""
            raise ConfigError(
                f"train_dataset: it gave no batch{where}; is it empty, or smaller than one with drop_last=True?"
            )

    def _known(self, batches: Iterator[Any], total: int) -> Iterator[tuple[Any, int, bool]]:
        for k, batch in enumerate(batches):
            remaining = total - k + k % self._group
            parts = min(self._group, remaining) if remaining > 0 else self._group
            yield batch, parts, (k + 1) % self._group == 0 or k + 1 == total

    def _stream(self, batches: Iterator[Any], ranks: Ranks) -> Iterator[tuple[Any, int, bool]]:
        step = list(islice(batches, self._group))
        while ranks.all(bool(step)):  # a rank alone in a step would wait for the others' gradients
            for k, batch in enumerate(step, 1):
                yield batch, len(step), k == len(step)
            step = list(islice(batches, self._group))
        remaining = ranks.gather(bool(step))
        if any(remaining) and not self._warned:
            self._warned = True
            ended = ", ".join(str(rank) for rank, more in enumerate(remaining) if not more)
            warnings.warn(
                f"train_dataset: it gives fewer batches to rank {ended} than to others; every epoch ends for all ranks "
                "when it ends for one, and the remaining batches are left out; give every rank equally many",
                stacklevel=2,
            )
