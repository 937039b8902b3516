from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from endoscope.errors import ConfigError
from endoscope.runners.buffer import AsyncBuffer, BufferClosed, BufferFailed


def buffer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "endoscope-buffer"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = set(buffer_threads())
    yield
    gc.collect()
    for thread in set(buffer_threads()) - before:
        thread.join(20)
        assert not thread.is_alive()


class Gate:
    """A convert function that stands still until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, value: Any) -> float:
        self.entered.set()
        assert self.open.wait(30)
        return float(value)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def fail_at(bad: float) -> Any:
    def convert(value: torch.Tensor) -> float:
        if float(value) == bad:
            raise KeyError("no such value")
        return float(value)

    return convert


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=200), st.integers(1, 50))
def test_values_arrive_converted_and_in_order(numbers: list[float], limit: int) -> None:
    buffer = AsyncBuffer(float, limit=limit)
    for number in numbers:
        buffer.put(torch.tensor(number))
    assert buffer.values() == numbers
    buffer.close()


def test_what_is_put_is_a_copy_without_a_gradient() -> None:
    seen: list[torch.Tensor] = []
    buffer = AsyncBuffer(seen.append)
    loss = torch.ones(2, requires_grad=True) * 3
    buffer.put({"loss": loss})
    with torch.no_grad():
        loss.zero_()
    buffer.flush()
    (value,) = seen
    assert torch.equal(value["loss"], torch.full((2,), 3.0))
    assert not value["loss"].requires_grad


def test_conversion_is_on_one_daemon_thread_of_our_name() -> None:
    buffer = AsyncBuffer(lambda _: threading.current_thread(), limit=20)
    for i in range(100):
        buffer.put(i)
    (thread,) = set(buffer.values())
    assert thread.name == "endoscope-buffer"
    assert thread.daemon


def test_the_thread_comes_with_many_values_or_with_a_question_and_outlives_a_reset() -> None:
    before = len(buffer_threads())
    buffer = AsyncBuffer(lambda _: threading.current_thread(), limit=20)
    for i in range(9):
        buffer.put(i)
    assert len(buffer_threads()) == before
    (first,) = set(buffer.values())
    assert len(buffer_threads()) == before + 1
    buffer.reset()
    for i in range(10):
        buffer.put(i)
    assert set(buffer.values()) == {first}
    buffer.close()
    assert len(buffer_threads()) == before

    other = AsyncBuffer(float, limit=20)
    for i in range(10):
        other.put(i)
    assert len(buffer_threads()) == before + 1  # nobody has asked
    other.close()


def test_where_there_is_no_thread_to_be_had_the_caller_converts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    buffer = AsyncBuffer(float, limit=4)
    for i in range(50):
        buffer.put(i)
    assert buffer.values() == [float(i) for i in range(50)]
    assert not buffer_threads()


def test_there_too_several_may_put(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: no_thread(self) if self.name == "endoscope-buffer" else real(self)
    )
    buffer = AsyncBuffer(int, limit=2)
    putters = [threading.Thread(target=lambda: [buffer.put(i) for i in range(300)], daemon=True) for _ in range(3)]
    for putter in putters:
        putter.start()
    for putter in putters:
        putter.join(30)
    assert not any(putter.is_alive() for putter in putters), "it hangs"
    assert sorted(buffer.values()) == sorted([*range(300)] * 3)


def test_there_too_a_convert_function_may_put(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    def convert(value: Any) -> float:
        if value < 100:
            buffer.put(value + 100)
        return float(value)

    buffer: AsyncBuffer[float] = AsyncBuffer(convert, limit=4)
    for i in range(10):
        buffer.put(i)
    while len(buffer.values()) < 20:
        pass
    assert sorted(buffer.values()) == [float(i) for i in (*range(10), *range(100, 110))]


def test_a_thread_that_comes_later_and_the_caller_do_not_convert_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate)
    for i in range(3):
        buffer.put(i)
    real = threading.Thread.start
    caller = threading.Thread(target=buffer.values)
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: no_thread(self) if self.name == "endoscope-buffer" else real(self)
    )
    caller.start()
    assert gate.entered.wait(30)
    monkeypatch.setattr(threading.Thread, "start", real)
    done: list[list[float]] = []
    other = threading.Thread(target=lambda: done.append(buffer.values()))
    other.start()
    other.join(0.2)
    gate.open.set()
    for thread in (caller, other):
        thread.join(30)
    assert done == [[0.0, 1.0, 2.0]] == [buffer.values()]


# ---------------------------------------------------------------- signals, and other threads, in the middle
class Raised(BaseException):
    """By a signal handler."""


@pytest.fixture
def after() -> Iterator[Callable[[float, Callable[[], Any]], None]]:
    """Have a signal handler called on the main thread after some time."""
    before = signal.getsignal(signal.SIGALRM)

    def arrange(seconds: float, action: Callable[[], Any]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: action())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield arrange
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Raised])
def test_who_is_interrupted_while_waiting_can_ask_again(error: type[BaseException], after: Any) -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate)
    for i in range(3):
        buffer.put(i)

    def interrupt() -> None:
        raise error

    after(0.2, interrupt)
    with pytest.raises(error):
        buffer.values()
    gate.open.set()
    assert buffer.values() == [0.0, 1.0, 2.0]


def test_a_signal_handler_may_ask_and_put_while_the_loop_asks(after: Any) -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate)
    for i in range(3):
        buffer.put(i)
    seen: list[list[float]] = []

    def look() -> None:
        gate.open.set()
        seen.append(buffer.values())
        buffer.put(3)

    after(0.2, look)
    assert buffer.values()[:3] == [0.0, 1.0, 2.0]
    assert seen == [[0.0, 1.0, 2.0]]
    assert buffer.values() == [0.0, 1.0, 2.0, 3.0]


def test_put_does_not_wait_for_another_thread_that_asks() -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate)
    buffer.put(0)
    asker = threading.Thread(target=buffer.values)
    asker.start()
    assert gate.entered.wait(30)
    putter = threading.Thread(target=lambda: [buffer.put(i) for i in range(1, 4)])
    putter.start()
    putter.join(20)
    assert not putter.is_alive()
    gate.open.set()
    asker.join(30)
    assert buffer.values() == [0.0, 1.0, 2.0, 3.0]


def test_values_asked_for_from_several_threads_while_others_put() -> None:
    buffer = AsyncBuffer(int, limit=64)
    done = threading.Event()
    asked: list[list[int]] = []

    def ask() -> None:
        while not done.is_set():
            asked.append(buffer.values())

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    for i in range(500):
        buffer.put(i)
    done.set()
    for asker in askers:
        asker.join(50)
    assert buffer.values() == [*range(500)]
    assert all(values == [*range(len(values))] for values in asked)


def test_put_does_not_wait_for_the_conversion() -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate, limit=100)
    for i in range(80):
        buffer.put(i)
    assert gate.entered.wait(30)  # it was woken without a flush, and stands in the first value
    gate.open.set()
    assert buffer.values() == [float(i) for i in range(80)]


def test_put_waits_when_the_queue_is_full() -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate, limit=2)
    passed: list[int] = []

    def produce() -> None:
        for i in range(10):
            buffer.put(i)
            passed.append(i)

    producer = threading.Thread(target=produce)
    producer.start()
    assert gate.entered.wait(30)
    producer.join(0.3)
    assert len(passed) <= 4  # two that wait, and those that the thread had taken
    assert producer.is_alive()
    gate.open.set()
    producer.join(30)
    assert buffer.values() == [float(i) for i in range(10)]


def test_many_threads_may_put() -> None:
    buffer = AsyncBuffer(int, limit=7)
    threads = [threading.Thread(target=lambda k=k: [buffer.put(k * 1000 + i) for i in range(200)]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    values = buffer.values()
    assert sorted(values) == [k * 1000 + i for k in range(4) for i in range(200)]
    for k in range(4):
        mine = [v for v in values if v // 1000 == k]
        assert mine == sorted(mine)


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize("use", ["flush", "values", "close"])
def test_an_error_is_raised_with_its_traceback(use: str) -> None:
    buffer = AsyncBuffer(fail_at(1.0))
    buffer.put(torch.tensor(1.0))
    with pytest.raises(BufferFailed, match=r"KeyError: 'no such value'.*reset the buffer") as raised:
        getattr(buffer, use)()
    assert isinstance(raised.value.__cause__, KeyError)
    assert "in convert" in "".join(traceback.format_exception(raised.value))


def test_an_error_is_raised_by_put_too_and_again_and_nothing_hangs() -> None:
    buffer = AsyncBuffer(fail_at(0.0), limit=2)

    def keep_putting() -> None:
        for i in range(10_000):
            buffer.put(float(i))

    with pytest.raises(BufferFailed):
        keep_putting()
    for _ in range(2):
        with pytest.raises(BufferFailed):
            buffer.put(1.0)
        with pytest.raises(BufferFailed):
            buffer.flush()
    with pytest.raises(BufferFailed):
        buffer.close()
    buffer.close()


def test_even_the_end_of_the_program_raised_in_the_thread_does_not_hang() -> None:
    def leave(_: Any) -> None:
        raise SystemExit(3)

    buffer = AsyncBuffer(leave)
    buffer.put(1.0)
    with pytest.raises(BufferFailed, match="SystemExit: 3"):
        buffer.flush()


def test_reset_forgets_values_and_errors() -> None:
    buffer = AsyncBuffer(fail_at(1.0))
    buffer.put(2.0)
    buffer.flush()
    buffer.put(1.0)
    with pytest.raises(BufferFailed):
        buffer.flush()
    buffer.reset()
    buffer.put(3.0)
    assert buffer.values() == [3.0]


def test_an_error_that_nobody_saw_is_logged_by_reset(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="endoscope")
    buffer = AsyncBuffer(fail_at(0.0), limit=1)
    buffer.put(0)
    with pytest.raises(BufferFailed):
        buffer.flush()
    buffer.reset()
    assert caplog.messages == []  # the twin: somebody saw it
    while not caplog.messages:  # the thread may not have met the error yet, and asking would be seeing
        buffer.put(0)
        time.sleep(0.05)
        buffer.reset()
    assert caplog.messages == ["a value was lost in a buffer that is reset now (KeyError: 'no such value')"]


def test_reset_does_not_wait_for_a_conversion_under_way() -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate, limit=1)
    buffer.put(1)
    assert gate.entered.wait(30)
    buffer.reset()
    gate.open.set()
    buffer.put(2)
    assert buffer.values() == [2.0]


def test_who_waits_for_room_goes_on_when_the_buffer_is_reset() -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate, limit=1)
    buffer.put(0)
    assert gate.entered.wait(30)
    waiting = [threading.Thread(target=buffer.put, args=(i,)) for i in range(3)]
    for thread in waiting:
        thread.start()
    waiting[0].join(0.2)
    assert all(thread.is_alive() for thread in waiting)
    buffer.reset()
    for thread in waiting:
        thread.join(20)
    assert not any(thread.is_alive() for thread in waiting)
    gate.open.set()
    buffer.put(7)
    assert buffer.values() == [7.0]


def test_closed_means_closed_and_the_values_stay() -> None:
    buffer = AsyncBuffer(float)
    buffer.put(1.0)
    buffer.close()
    buffer.close()
    assert not buffer_threads()
    assert buffer.values() == [1.0]
    with pytest.raises(BufferClosed, match="make a new one"):
        buffer.put(2.0)


def test_a_convert_function_that_waits_for_its_own_buffer_is_told() -> None:
    buffer: AsyncBuffer[None] = AsyncBuffer(lambda _: buffer.flush())
    buffer.put(1)
    with pytest.raises(BufferFailed, match="must not wait for the buffer itself"):
        buffer.flush()
    buffer.reset()
    buffer.close()


@pytest.mark.parametrize("values", [1, 40])
def test_a_convert_function_may_put(values: int) -> None:
    def convert(value: Any) -> float:
        if value < 100:
            buffer.put(value + 100)
        return float(value)

    buffer: AsyncBuffer[float] = AsyncBuffer(convert, limit=50)
    done: list[list[float]] = []

    def work() -> None:
        for i in range(values):
            buffer.put(i)
        buffer.flush()
        done.append(buffer.values())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive(), "it hangs"
    assert sorted(done[0]) == [float(i) for i in (*range(values), *range(100, 100 + values))]
    buffer.close()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="limit=0; a buffer needs room for at least one value"):
        AsyncBuffer(float, limit=0)


# ---------------------------------------------------------------- ends
def test_a_forgotten_buffer_ends_its_thread() -> None:
    before = set(buffer_threads())
    buffer = AsyncBuffer(float, limit=1)
    buffer.put(1.0)
    (thread,) = set(buffer_threads()) - before
    del buffer
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_starts_empty(duplicate: Any) -> None:
    buffer = AsyncBuffer(float)
    buffer.put(1.0)
    other = duplicate(buffer)
    other.put(2.0)
    assert (buffer.values(), other.values()) == ([1.0], [2.0])


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("held", [False, True])
def test_a_forked_child_has_a_thread_of_its_own_and_starts_empty(held: bool) -> None:
    gate = Gate()
    buffer = AsyncBuffer(gate, limit=1)
    buffer.put(1.0)
    assert gate.entered.wait(30)
    if not held:
        gate.open.set()
        buffer.flush()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            gate.open.set()
            buffer.flush()
            buffer.put(2.0)
            assert buffer.values() == [2.0]
            buffer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gate.open.set()
    buffer.put(3.0)
    assert buffer.values() == [1.0, 3.0]


EXIT = """
import atexit, sys, threading, torch

if sys.argv[1] == "late":  # handlers run in the reverse order: this one when the buffers have ended
    atexit.register(lambda: [buffer.put(value) for _ in range(5000)])
from endoscope.runners.buffer import AsyncBuffer

def fail(value):
    raise ValueError("bad")

convert = {"busy": lambda v: v.sum().item(), "broken": fail, "late": lambda v: v.sum().item()}[sys.argv[1]]
buffer = AsyncBuffer(convert, limit=4000)
value = torch.ones(2000)
try:
    for _ in range(3000):
        buffer.put(value)
except RuntimeError:
    pass
print("done")
"""


@pytest.mark.parametrize("how", ["busy", "broken", "late"])
def test_the_program_ends_whatever_the_thread_does(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT, how], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
