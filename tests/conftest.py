from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.warm import WarmProcess

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background job; tests of Ctrl-C want it back
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """An interpreter with torch imported, whose forked children do what may kill, hang or swell a process."""
    process = WarmProcess()
    yield process
    process.close()
