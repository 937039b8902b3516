"""Generators are left as they were, also by blocks that overlap on several threads."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.capturing.randomness import preserve_random


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


@pytest.mark.parametrize("action", [nothing, uniform, dropout, seeding, seeding_as_before])
def test_the_stream_goes_on_as_if_nothing_had_been_drawn(action: Callable[[], None]) -> None:
    torch.manual_seed(3)
    torch.rand(2)
    before = torch.get_rng_state()
    with preserve_random():
        action()
    assert torch.equal(torch.get_rng_state(), before)


def test_also_when_it_ends_with_an_exception() -> None:
    before = torch.get_rng_state()
    with contextlib.suppress(ValueError), preserve_random(), preserve_random():
        torch.rand(3)
        raise ValueError
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_inside_differ_from_each_other() -> None:
    with preserve_random():
        assert not torch.equal(torch.rand(3), torch.rand(3))


def test_an_own_generator_is_left_to_the_user() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    with preserve_random():
        torch.rand(3, generator=generator)
    assert not torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(("draw", "state"), [(random.random, random.getstate), (np.random.rand, np.random.get_state)])
def test_python_and_numpy_when_asked(draw: Callable[[], Any], state: Callable[[], Any]) -> None:
    before = repr(state())
    with preserve_random(python=True):
        draw()
    assert repr(state()) == before
    with preserve_random():
        draw()
    assert repr(state()) != before


COLLECTED = """
import gc, sys, threading
from endoscope.capturing.randomness import preserve_random
sys.setswitchinterval(1e-5)
gc.callbacks.append(lambda *_: sum(range(200)))  # Python that runs while torch holds the generator's lock
gc.set_threshold(1)

def run():
    for _ in range(1000):
        with preserve_random():
            pass

threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_do_not_deadlock() -> None:
    subprocess.run([sys.executable, "-c", COLLECTED], check=True, timeout=60)


def test_two_threads_that_draw_leave_the_users_stream_alone() -> None:
    before = torch.get_rng_state()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def draw() -> None:
        for _ in range(500):
            with preserve_random():
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
