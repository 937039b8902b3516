"""``endoscope pages verify``: undamaged, damaged and unchecked captures, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from tests.commands.captured import Captured, Run, flip_byte


def test_undamaged_captures(tmp_path: Path, captured: Captured, run: Run) -> None:
    for epoch in (1, 3):
        captured(tmp_path / f"epoch_{epoch}" / "debugger", {0: torch.zeros(5), 1: torch.ones(5)})
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.startswith("captures 2, pages 2, datapoints 4, ")
    assert result.stdout.endswith(": no damage\n")
    assert result.stderr == ""


def test_a_damaged_record_is_named(tmp_path: Path, captured: Captured, run: Run) -> None:
    folder = captured(tmp_path / "epoch_3" / "debugger", {10: 1, 11: 2, 12: 3})
    flip_byte(folder, record=1)
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 1
    damaged, summary = result.stdout.splitlines()
    assert damaged.startswith("epoch_3/debugger/page_0.safetensors, record 1 (datapoint 11): checksum")
    assert summary.endswith(": damaged: 1")
    again = run("pages", "verify", tmp_path, "--json")
    assert again.exit_code == 1
    facts = json.loads(again.stdout)
    assert facts["damaged"] == 1
    (damage,) = facts["captures"][0]["damage"]
    assert (damage["file"], damage["record"], damage["indices"]) == ("page_0.safetensors", 1, [11])
    assert "checksum" in damage["cause"]


def test_a_truncated_page(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: torch.zeros(100), 1: torch.ones(100)})
    page = tmp_path / "page_0.safetensors"
    os.truncate(page, page.stat().st_size - 64)
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 1
    assert "page_0.safetensors, record 1 (datapoint 1): " in result.stdout
    assert "record 0" not in result.stdout


def test_truncated_lines(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: 1, 1: 2})
    lines = tmp_path / "page_0.jsonl"
    os.truncate(lines, sum(map(len, lines.read_bytes().splitlines(keepends=True)[:2])) + 20)
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 1
    assert "datapoint 1" in result.stdout


def test_an_unfinished_capture_is_checked_as_far_as_it_goes(tmp_path: Path, captured: Captured, run: Run) -> None:
    with captured.open(tmp_path / "live") as debugger:
        captured.feed(debugger, {0: 1, 1: 2})
        assert debugger.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    result = run("pages", "verify", tmp_path / "killed")
    assert result.exit_code == 0
    assert result.stdout.startswith("captures 1 (1 unfinished, checked as far as written), pages 1, datapoints 2, ")


def test_pickle_pages_are_reported_as_not_checked(tmp_path: Path, captured: Captured, run: Run) -> None:
    (tmp_path / "epoch_0").mkdir()
    (tmp_path / "epoch_0" / "page_0.pkl").write_bytes(b"")
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 2
    assert "epoch_0: not checked, because opening pickle pages can run code" in result.stdout
    assert result.stdout.endswith(": nothing was checked\n")
    captured(tmp_path / "debugger", {0: 1})
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 0
    assert "not checked" in result.stdout
    facts = json.loads(run("pages", "verify", tmp_path, "--json").stdout)
    assert [(c["capture"], c["checked"]) for c in facts["captures"]] == [("debugger", True), ("epoch_0", False)]


def test_nothing_to_check_is_not_success(tmp_path: Path, run: Run) -> None:
    result = run("pages", "verify", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: no captures in")
