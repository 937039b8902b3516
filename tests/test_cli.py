"""The ``endoscope`` command: it starts fast, and its errors are messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import endoscope
from endoscope.cli import COMMANDS, main

PROBE = """
import sys
from endoscope.cli import main
try:
    main({arguments!r})
except SystemExit as e:
    assert e.code == 0
print("imported:", *[m for m in ("torch", "numpy", "rich", "sklearn") if m in sys.modules])
"""


def imported(*arguments: str) -> str:
    code = PROBE.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["pages", "--help"], ["pages", "show", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) == "imported:"


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["trian"], 2)])
def test_python_dash_m(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "endoscope", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code
    assert (endoscope.__version__ in done.stdout) == (code == 0)
    assert ("closest: 'train'" in done.stderr) == (code == 2)


def test_twin_a_command_that_works_is_caught(tmp_path: Path) -> None:
    assert imported("pages", "list", str(tmp_path)) == "imported: torch numpy rich"


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"endoscope, version {endoscope.__version__}\n"


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page", "no command 'page'; closest: 'pages'"),
        ("x", "no command 'x'; the commands are demo, eval, pages, train, view"),
    ],
)
def test_an_unknown_command(name: str, message: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {message}\n")


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(work_dir: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("endoscope.commands.captures.find_captures", broken)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(main, ["pages", "list", str(tmp_path)], catch_exceptions=False)


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    folder = tmp_path / "ü…"
    folder.mkdir()
    command = [sys.executable, "-c", "from endoscope.cli import main; main()", "pages", "list", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"no captures in" in done.stdout
