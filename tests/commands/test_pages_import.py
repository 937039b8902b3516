"""``endoscope pages import``: pickles are opened only after the user has confirmed that they are trusted."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from tests.commands.captured import Captured, Run

from endoscope import load_debug_outputs


class RunsCode:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "code_was_run"


@pytest.fixture
def hostile(tmp_path: Path, proof: Path) -> Path:
    folder = tmp_path / "run" / "debugger"
    folder.mkdir(parents=True)
    joblib.dump({0: {"x": RunsCode(proof)}}, folder / "page_0.pkl")
    return folder.parent


def test_trusted_pages_are_converted(tmp_path: Path, captured: Captured, run: Run) -> None:
    points = {i: {"x": torch.arange(5) * i, "name": str(i)} for i in range(4)}
    captured(tmp_path / "old" / "debugger", points, page_format="pickle")
    assert (tmp_path / "old" / "debugger" / "page_0.pkl").exists()
    result = run("pages", "import", tmp_path / "old", tmp_path / "new", "--trust")
    assert (result.exit_code, result.stdout) == (0, f"converted into {tmp_path / 'new'}: datapoints 4, pages 1\n")
    assert "opening a pickle can run any code" in result.stderr
    before = load_debug_outputs(tmp_path / "old", trust_pickle=True)
    after = load_debug_outputs(tmp_path / "new")
    assert list(after) == list(before) == [0, 1, 2, 3]
    for i in range(4):
        assert torch.equal(after[i]["given"]["x"], points[i]["x"])
        assert after[i]["given"]["name"] == str(i)
        assert torch.equal(after[i]["features"]["feature_map"], before[i]["features"]["feature_map"])


def test_without_trust_nothing_is_opened(tmp_path: Path, hostile: Path, proof: Path, run: Run) -> None:
    result = run("pages", "import", hostile, tmp_path / "new")
    assert result.exit_code == 2
    assert "opening a pickle can run any code that its author put into it" in result.stderr
    assert "Error: nothing was opened; if you trust the author of these pickles, add --trust" in result.stderr
    for command in (["list"], ["show", 0], ["verify"], ["export", tmp_path / "out.npz"]):
        run("pages", command[0], hostile, *command[1:])
    assert not proof.exists()
    assert not (tmp_path / "new").exists()


def test_twin_with_trust_the_code_runs(tmp_path: Path, hostile: Path, proof: Path, run: Run) -> None:
    assert run("pages", "import", hostile, tmp_path / "new", "--trust").exit_code == 0
    assert proof.exists()


@pytest.mark.parametrize("answer", ["n", "y"])
def test_at_a_terminal_it_asks(tmp_path: Path, hostile: Path, proof: Path, answer: str) -> None:
    parent, child = pty.openpty()
    os.write(parent, f"{answer}\n".encode())
    command = [sys.executable, "-c", "from endoscope.cli import main; main()", "pages", "import"]
    done = subprocess.run(
        [*command, str(hostile), str(tmp_path / "new")], stdin=child, capture_output=True, text=True, check=False
    )
    os.close(parent)
    os.close(child)
    assert "Do you trust the author of these pickles? [y/N]" in done.stderr
    assert done.returncode == (0 if answer == "y" else 1)
    assert proof.exists() == (answer == "y")


def test_pages_are_never_mixed(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path / "old", {0: 1}, page_format="pickle")
    for target in (tmp_path / "old", captured(tmp_path / "other", {0: 1})):
        result = run("pages", "import", tmp_path / "old", target, "--trust")
        assert result.exit_code == 2
        assert "already holds pages" in result.stderr


def test_a_folder_without_pickle_pages(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path / "debugger", {0: 1})
    result = run("pages", "import", tmp_path, tmp_path / "new", "--trust")
    assert result.exit_code == 2
    assert result.stderr == f"Error: no pickle pages (page_0.pkl, ...) in '{tmp_path / 'debugger'}'\n"


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x04cno_such_module\nThing\n."])
def test_a_broken_pickle_is_a_message(tmp_path: Path, run: Run, content: bytes) -> None:
    (tmp_path / "page_0.pkl").write_bytes(content)
    result = run("pages", "import", tmp_path, tmp_path / "new", "--trust")
    assert result.exit_code == 2
    assert "page_0.pkl cannot be unpickled: " in result.stderr
