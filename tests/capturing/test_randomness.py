"""Generators are left as they were, and nothing that another thread draws meanwhile is drawn twice."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.capturing.randomness import QuietThread, random_kept


def nothing() -> None:
    torch.ones(3).mean()


def uniform() -> None:
    torch.rand(5)


def dropout() -> None:
    torch.nn.functional.dropout(torch.ones(9), 0.5, training=True)


def seeding() -> None:
    torch.manual_seed(99)


def seeding_as_before() -> None:
    torch.manual_seed(3)
    torch.rand(4)


ACTIONS = [nothing, uniform, dropout, seeding, seeding_as_before]


@contextmanager
def another_thread(kind: type[threading.Thread] = threading.Thread) -> Iterator[None]:
    started, over = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        over.wait()

    thread = kind(target=wait)
    thread.start()
    started.wait()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("thread", [threading.Thread, QuietThread])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_stream_goes_on_as_if_nothing_had_been_drawn(
    action: Callable[[], None], thread: type[threading.Thread]
) -> None:
    torch.manual_seed(3)
    torch.rand(2)
    before = torch.get_rng_state()
    with another_thread(thread), random_kept():
        action()
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_inside_differ_from_each_other_and_not_from_those_of_one_thread() -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(0)
        with random_kept():
            return [torch.rand(3), torch.rand(3)]

    alone = drawn()
    with another_thread():
        beside = drawn()
    assert not torch.equal(alone[0], alone[1])
    assert all(map(torch.equal, alone, beside))


@pytest.mark.parametrize("action", [nothing, uniform, dropout])
def test_draws_of_another_thread_are_not_undone(action: Callable[[], None]) -> None:
    inside, drawn = threading.Event(), threading.Event()
    found: list[torch.Tensor] = []

    def draw() -> None:
        inside.wait(10)
        found.append(torch.rand(4))
        drawn.set()

    torch.manual_seed(0)
    expected = [torch.rand(4), torch.rand(4)]
    torch.manual_seed(0)
    thread = threading.Thread(target=draw)
    thread.start()
    with random_kept():
        action()
        inside.set()
        assert drawn.wait(10)
        action()
    thread.join()
    found.append(torch.rand(4))
    assert all(map(torch.equal, found, expected))


def test_an_own_generator_is_the_users_affair() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    with another_thread(), random_kept():
        torch.rand(3, generator=generator)
    assert not torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(("draw", "state"), [(random.random, random.getstate), (np.random.rand, np.random.get_state)])
def test_python_and_numpy_when_asked(draw: Callable[[], Any], state: Callable[[], Any]) -> None:
    before = repr(state())
    with random_kept(python=True):
        draw()
    assert repr(state()) == before
    with random_kept():
        draw()
    assert repr(state()) != before


def test_our_own_threads_are_counted_while_they_live() -> None:
    before = QuietThread.alive
    with another_thread(QuietThread):
        assert QuietThread.alive == before + 1
        with another_thread():
            assert QuietThread.alive == before + 1
    assert QuietThread.alive == before


COLLECTED = """
import gc, sys, threading
from endoscope.capturing.randomness import random_kept
sys.setswitchinterval(1e-5)
gc.callbacks.append(lambda *_: sum(range(200)))  # Python that runs while torch holds the generator's lock
gc.set_threshold(1)

def run():
    for _ in range(1000):
        with random_kept():
            pass

threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_do_not_wait_for_each_other_for_ever() -> None:
    subprocess.run([sys.executable, "-c", COLLECTED], check=True, timeout=60)


def test_two_threads_that_draw_leave_the_users_stream_alone() -> None:
    before = torch.get_rng_state()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def draw() -> None:
        for _ in range(500):
            with random_kept():
                torch.rand(3)

    try:
        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert torch.equal(before, torch.get_rng_state())
