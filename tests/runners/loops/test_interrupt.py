"""Interrupt: the first signal is recorded, the second ends the process, and the handlers are restored."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from endoscope.runners.loops.interrupt import Interrupt, Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_recorded_and_raised_by_check(number: signal.Signals) -> None:
    before = [signal.getsignal(s) for s in SIGNALS]
    with Interrupt() as interrupt:
        interrupt.check()
        assert interrupt.signal is None
        os.kill(os.getpid(), number)
        assert interrupt.signal == number
        assert [signal.getsignal(s) for s in SIGNALS] == before  # a second one does what it always did
        with pytest.raises(Interrupted, match=f"interrupted by {number.name}") as error:
            interrupt.check()
    assert error.value.exit_code == 128 + number
    assert [signal.getsignal(s) for s in SIGNALS] == before


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt) as error:
            os.kill(os.getpid(), signal.SIGINT)
    assert not isinstance(error.value, Interrupted)


def test_handlers_return_after_an_error() -> None:
    before = [signal.getsignal(s) for s in SIGNALS]

    def fail() -> None:
        with Interrupt():
            assert [signal.getsignal(s) for s in SIGNALS] != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [signal.getsignal(s) for s in SIGNALS] == before


def test_in_another_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(s) for s in SIGNALS]
    seen = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append([signal.getsignal(s) for s in SIGNALS])
            interrupt.check()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_it_is_a_keyboard_interrupt_and_so_passes_except_exception() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, Exception)
