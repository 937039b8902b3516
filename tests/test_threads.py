from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from endoscope.threads import SingleThread


class Work:
    """Counts how often it is begun, and goes on until it may end."""

    def __init__(self) -> None:
        self.begun: list[threading.Thread] = []
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.begun.append(threading.current_thread())
        assert self.may_end.wait(30)


def interrupted_at(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next Thread.start raises KeyboardInterrupt before or after the thread is there."""
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", real)
        if place == "after":
            real(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)


def test_started_twice_it_runs_once() -> None:
    work = Work()
    thread = SingleThread(work, name="ours")
    assert (thread.started, thread.alive, thread.current) == (False, False, False)
    thread.join()  # of what was not started waits for nothing
    thread.start()
    thread.start()
    assert (thread.started, thread.alive, thread.current) == (True, True, False)
    thread.join(0.05)
    assert thread.alive
    work.may_end.set()
    thread.join()
    assert not thread.alive
    (one,) = work.begun
    assert (one.name, one.daemon, one.is_alive()) == ("ours", True, False)


@pytest.mark.parametrize("place", ["before", "after"])
def test_interrupted_while_it_is_started(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    thread = SingleThread(work, name="ours")
    interrupted_at(place, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
    for _ in range(3):
        thread.start()
    work.may_end.set()
    thread.join()
    assert len(work.begun) == 1


def test_two_that_start_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    thread = SingleThread(work, name="ours")
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", real)
        thread.start()  # a signal handler, in the middle of the first
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    thread.start()
    until = time.monotonic() + 20
    while sum(one.name == "ours" for one in threading.enumerate()) > 1:
        assert time.monotonic() < until, "the second did not end"
    work.may_end.set()
    thread.join()
    assert len(work.begun) == 1


def test_its_work_knows_that_it_is_the_current_one() -> None:
    seen: list[bool] = []
    thread = SingleThread(lambda: seen.append(thread.current), name="ours")
    thread.start()
    thread.join()
    assert seen == [True]


def test_no_thread_to_be_had_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    work = Work()
    work.may_end.set()
    thread = SingleThread(work, name="ours")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        assert "can't start" in str(thread.start())
        assert not thread.started
    assert thread.start() is None
    thread.join()
    assert len(work.begun) == 1


def test_an_end_by_an_error_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail() -> None:
        raise ValueError

    thread = SingleThread(fail, name="ours")
    thread.start()
    thread.join(30)
    assert not thread.alive
