"""The identity of a process is unique."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from endoscope.runs import process
from endoscope.runs.process import identity, state


def test_our_process_is_alive_and_has_its_own_identity() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert own == identity(os.getpid())
    assert own != identity(os.getppid())
    assert state(own) == "alive"


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = identity(child.pid)
    assert name is not None and state(name) == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert state(name) == "gone"
    assert identity(child.pid) is None
    child.communicate()
    assert state(name) == "gone"


def test_another_process_with_the_same_pid_has_another_identity() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert state(f"{own.rpartition(' ')[0]} 1") == "gone"


def test_a_process_of_another_machine_is_unknown() -> None:
    own = identity(os.getpid())
    assert own is not None
    boot, namespace, pid, began = own.split()
    assert state(f"another-boot {namespace} {pid} {began}") == "unknown"
    assert state(f"{boot} pid:[1] {pid} {began}") == "unknown"


@pytest.mark.parametrize("pid", ["", "-1", "0x1", "1 2", "9" * 400, "٣", "\n", "self"])
def test_a_pid_without_a_process(pid: str) -> None:
    own = identity(os.getpid())
    assert own is not None
    boot, namespace, _, began = own.split()
    assert state(f"{boot} {namespace} {pid} {began}") in ("unknown", "gone")


@pytest.mark.parametrize("text", ["", " ", "x", "a b c d", "pid:", " pid: ", "\x00"])
def test_a_text_that_is_not_an_identity(text: str) -> None:
    assert state(text) == "unknown"


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = identity(os.getpid())
    assert own is not None
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert identity(os.getpid()) is None
    assert state(own) == "unknown"


def test_a_process_that_proc_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    own = identity(os.getpid())
    assert own is not None

    def refused(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(process, "_start_time", lambda pid: None)
    assert state(own) == "gone" or os.getuid() != 0
    monkeypatch.setattr(process.os, "kill", refused)
    assert state(own) == "unknown"


def test_a_name_with_parentheses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = " ".join(["S", *map(str, range(1, 40))])
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "stat").write_text(f"17 (a) b) {fields}")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert process._start_time(17) == "19"
