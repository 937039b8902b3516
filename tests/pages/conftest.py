from __future__ import annotations

import logging

import pytest


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that Endoscope logs while the test runs."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                found.append(record.getMessage())

    logging.getLogger("endoscope").addHandler(handler := Handler())
    yield found  # type: ignore[misc]
    logging.getLogger("endoscope").removeHandler(handler)
