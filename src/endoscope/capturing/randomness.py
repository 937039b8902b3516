"""Random numbers: what runs inside `preserve_random` leaves the user's generators as they were.

Torch's generators belong to all threads. What another thread draws from them meanwhile may be drawn again.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class _Shared:
    """The states before the first of the blocks that overlap, on whatever threads; restored after the last."""

    def __init__(self) -> None:
        # States are read by one thread at a time. Torch holds the lock of a generator while it makes the tensor of its
        # state; the garbage collector may then switch threads, and a second reader would deadlock with the first.
        self.lock = threading.RLock()
        self.blocks = 0
        self.states: tuple[torch.Tensor, list[torch.Tensor] | None] | None = None

    def enter(self) -> None:
        with self.lock:
            if self.blocks == 0:
                cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
                self.states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else None
            self.blocks += 1

    def leave(self) -> None:
        with self.lock:
            self.blocks -= 1
            if self.blocks == 0 and self.states is not None:
                cpu, cuda = self.states
                torch.set_rng_state(cpu)
                if cuda is not None:
                    torch.cuda.set_rng_state_all(cuda)


_shared = _Shared()


def _in_a_fork() -> None:
    global _shared
    _shared = _Shared()  # the lock may be held by a thread of the parent


os.register_at_fork(after_in_child=_in_a_fork)


@contextmanager
def preserve_random(*, python: bool = False) -> Iterator[None]:
    """Restore torch's generators afterwards; with ``python`` also those of ``random`` and ``numpy.random``.

    >>> before = torch.get_rng_state()
    >>> with preserve_random():
    ...     _ = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    shared = _shared
    others: Any = (random.getstate(), np.random.get_state()) if python else None
    shared.enter()
    try:
        yield
    finally:
        shared.leave()
        if others is not None:
            random.setstate(others[0])
            np.random.set_state(others[1])
