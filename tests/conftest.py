from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.warm import WarmProcess


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """An interpreter with torch imported, whose forked children do what may kill, hang or swell a process."""
    process = WarmProcess()
    yield process
    process.close()
