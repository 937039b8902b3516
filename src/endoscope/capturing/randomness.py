"""Random numbers: what runs inside `random_kept` leaves the user's generators as they were.

A generator belongs to all threads of a process. While others are alive it is not simply put back, because then what
another thread drew in the meantime would be drawn again: this thread draws from states of its own instead.
"""

from __future__ import annotations

import _thread
import os
import random
import threading
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

threads_alive = _thread._count
"""How many were made by Python and are alive, besides the main one; others are not seen. A fifth of the cost of
threading.active_count."""
_generator = torch.default_generator
_equal = torch.equal
_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
CUDA_BUILT: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]


class QuietThread(threading.Thread):
    """A thread of our own: it draws no random numbers, and `random_kept` need not mind it."""

    alive: ClassVar[int] = 0
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def run(self) -> None:
        with QuietThread._lock:
            QuietThread.alive += 1
        try:
            super().run()
        finally:
            with QuietThread._lock:
                QuietThread.alive -= 1


_one_at_a_time = threading.RLock()
"""Torch holds the generator's own lock while it makes the tensor of a state, and the collector may then run Python,
which gives the interpreter lock away: a second thread that asked would wait for the first with it in its hand."""


def _in_a_fork() -> None:
    global _one_at_a_time
    QuietThread.alive, QuietThread._lock = 0, threading.Lock()
    _one_at_a_time = threading.RLock()


def _state() -> torch.Tensor:
    with _one_at_a_time:
        return _generator.get_state()


os.register_at_fork(after_in_child=_in_a_fork)


class random_kept:  # used like torch.no_grad
    """Torch's generators are afterwards as before; with ``python`` also those of ``random`` and ``numpy.random``.

    >>> before = torch.get_rng_state()
    >>> with random_kept():
    ...     _ = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """

    __slots__ = ("_apart", "_before", "_others", "_python")

    def __init__(self, *, python: bool = False) -> None:
        self._python = python

    def __enter__(self) -> None:
        self._before = _States()
        self._others = (random.getstate(), np.random.get_state()) if self._python else None
        self._apart = threads_alive() > QuietThread.alive
        if self._apart:
            _push(_DrawnApart.__new__(_DrawnApart))

    def __exit__(self, *error: Any) -> None:
        if self._apart:
            _pop(None)
        if not self._apart or (not _equal(self._before.cpu, _state()) and self._seeded()):
            self._before.put_back()
        if self._others is not None:
            random.setstate(self._others[0])
            np.random.set_state(self._others[1])

    def _seeded(self) -> bool:
        """Whether it was seeded meanwhile, perhaps with the seed that it had, and not another thread that drew. Seeding
        is no operation, so that it is not seen when it is done."""
        before, seed = torch.Generator(), _generator.initial_seed()
        before.set_state(self._before.cpu)
        return seed != before.initial_seed() or _equal(before.manual_seed(seed).get_state(), _state())


class _States:
    """The present states of torch's generators."""

    __slots__ = ("_cuda", "cpu")

    def __init__(self) -> None:
        self.cpu = _state()
        self._cuda = torch.cuda.get_rng_state_all() if CUDA_BUILT and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        with _one_at_a_time:
            _generator.set_state(self.cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


class _DrawnApart(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """This thread's draws come from states of its own; those of the generators are exchanged for as long as a draw.

    It is pushed without the mode's ``__enter__``, which costs five times as much and sets flags for the whole process:
    two threads that leave in the order in which they came would leave them set.
    """

    _mine: _States | None = None  # there is no __init__, which would be called in every hook

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWS_NOTHING:
            return function(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in function.tags:
            _DRAWS_NOTHING.add(function)
            return function(*args, **kwargs)
        if kwargs.get("generator") not in (None, _generator):
            return function(*args, **kwargs)
        with _one_at_a_time:  # or another debugger's thread would take this one's states for the user's
            theirs = _States()
            if self._mine is not None:
                self._mine.put_back()
            try:
                return function(*args, **kwargs)
            finally:
                self._mine = _States()
                theirs.put_back()


_DRAWS_NOTHING: set[Any] = set()  # operations: their tags are dear to ask for
