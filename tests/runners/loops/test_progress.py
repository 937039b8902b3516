"""Progress on the screen: a bar on a terminal, lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from endoscope.runners.loops import progress as module
from endoscope.runners.loops.progress import Bar, Lines, Silent, progress


def test_which(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress(first_rank=False), Silent)
    assert isinstance(progress(first_rank=True), Lines)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(progress(first_rank=True), Bar)
    assert isinstance(progress(first_rank=False), Silent)


def test_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Lines()
    assert list(shown.over("abc", "training", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().out == ""  # a short loop says nothing
    monkeypatch.setattr(module, "LINE_S", -1.0)
    assert list(shown.over("ab", "training", 2)) == ["a", "b"]
    assert list(shown.over("a", "stream", None)) == ["a"]
    shown.report("epoch 0 [bold] :fire:")
    assert capsys.readouterr().out.splitlines() == [
        "training: batch 0 of 2", "training: batch 1 of 2", "stream: batch 0", "epoch 0 [bold] :fire:",
    ]  # fmt: skip


def test_silence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_S", -1.0)
    assert list(Silent().over("abc", "training", 3)) == ["a", "b", "c"]
    Silent().report("epoch 0")
    assert capsys.readouterr() == ("", "")


def on_a_terminal(code: str) -> str:
    """What a program shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # raised when the other side is closed
            while more := os.read(ours, 65536):
                shown += more
    os.close(ours)
    return shown.decode()


CODE = """
import importlib.util
spec = importlib.util.spec_from_file_location("progress", {file!r})  # without torch, which takes seconds
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.REDRAW_S = -1.0

def loop(shown, items, what, total, fails=False):
    for item in shown.over(items, what, total):
        if fails:
            raise ZeroDivisionError

shown = module.progress(first_rank=True)
loop(shown, [1, 2, 3], "epoch 0 training", 3)
loop(shown, iter([1, 2]), "a stream", None)
try:
    loop(shown, [1, 2, 3], "epoch 1 training", 3, fails=True)
except ZeroDivisionError:
    shown.report("failed")
shown.report("runs/[bold] :fire: " + "x" * 100)
silent = module.progress(first_rank=False)
loop(silent, [1], "rank 1", 1)
silent.report("rank 1")
"""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_a_bar_that_leaves_the_terminal_as_it_was() -> None:
    shown = on_a_terminal(CODE.format(file=module.__file__))
    for text in ("epoch 0 training", "0/3", "a stream", "epoch 1 training"):
        assert text in shown
    assert "Traceback" not in shown
    assert "rank 1" not in shown
    assert shown.count(HIDE) == shown.count(SHOW) == 3
    assert shown.rindex(SHOW) < shown.index("failed\r\n") < shown.index("runs/[bold] :fire: " + "x" * 100)
