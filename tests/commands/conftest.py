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
    """``run("pages", "list", folder)`` gives the command's result; what it fails to catch is raised here."""
    runner = CliRunner()
    return lambda *args, **more: runner.invoke(main, [*map(str, args)], catch_exceptions=False, **more)


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a pipe here; pytest's workers set a width all the same."""
    monkeypatch.delenv("COLUMNS", raising=False)
