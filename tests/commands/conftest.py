from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.commands.captured import Captured, Run

from endoscope.cli import main


@pytest.fixture
def captured() -> Captured:
    return Captured()


@pytest.fixture
def run() -> Run:
    """``run("pages", "list", folder)`` gives the command's result; other exceptions are raised."""
    runner = CliRunner()
    return lambda *args, **more: runner.invoke(main, [*map(str, args)], catch_exceptions=False, **more)


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's workers set COLUMNS, although the output goes to a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
