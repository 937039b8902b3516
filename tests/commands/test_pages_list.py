"""``endoscope pages list``: the captures of a run, without opening pickles."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tests.commands.captured import Captured, Run


def sizes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.iterdir())


def test_every_capture_is_listed_with_its_numbers(tmp_path: Path, captured: Captured, run: Run) -> None:
    points = {i: {"x": torch.zeros(100)} for i in range(6)}
    for epoch in (10, 4):
        captured(tmp_path / f"epoch_{epoch}" / "debugger", points, page_size_mb=2e-3)
    captured(tmp_path / "debugger", {7: {"x": 1}})
    result = run("pages", "list", tmp_path, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["captures"]
    assert [c["capture"] for c in found] == ["debugger", "epoch_4/debugger", "epoch_10/debugger"]
    assert [c["epoch"] for c in found] == [None, 4, 10]
    assert [c["datapoints"] for c in found] == [1, 6, 6]
    assert [c["records"] for c in found] == [1, 6, 6]
    for c in found:
        folder = tmp_path / c["capture"]
        assert c["pages"] == len(list(folder.glob("page_*.safetensors")))
        assert c["bytes"] == sizes(folder)
        assert (c["state"], c["dropped"], c["damaged"], c["format"]) == ("closed", 0, 0, "safetensors")
    assert found[1]["pages"] > 1


def test_a_batch_is_one_record_of_several_datapoints(tmp_path: Path, captured: Captured, run: Run) -> None:
    with captured.open(tmp_path) as debugger:
        captured.model(torch.zeros(3, 1, 6, 6))
        debugger({"given": 1, "meta_info": {"idx": [5, 6, 7]}}, captured.model)
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert (found["capture"], found["records"], found["datapoints"]) == (".", 1, 3)


def test_the_table_has_the_same_facts(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path / "epoch_4" / "debugger", {3: 1, 5: 2})
    result = run("pages", "list", tmp_path)
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if "epoch_4/debugger" in line]
    assert row.split()[:4] == ["epoch_4/debugger", "1", "2", "2"]
    assert row.split()[-3:] == ["closed", "0", "0"]
    assert "endoscope pages verify" in result.stdout


def test_a_capture_whose_process_was_killed_is_unfinished(tmp_path: Path, captured: Captured, run: Run) -> None:
    with captured.open(tmp_path / "live") as debugger:
        captured.feed(debugger, {0: 1, 1: 2})
        assert debugger.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "killed" / "debugger")
    (found,) = json.loads(run("pages", "list", tmp_path / "killed", "--json").stdout)["captures"]
    assert (found["state"], found["datapoints"], found["damaged"]) == ("unfinished", 2, 0)


def test_dropped_records_are_counted(tmp_path: Path, captured: Captured, run: Run) -> None:
    big = torch.zeros(1 << 20)
    with captured.open(tmp_path, queue_mb=1, on_full="drop") as debugger:
        captured.feed(debugger, dict.fromkeys(range(30), big))
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert found["records"] + found["dropped"] == 30


def test_a_line_that_cannot_be_read_is_counted(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: 1, 1: 2})
    lines = (tmp_path / "page_0.jsonl").read_bytes().replace(b'"idx":0', b'"idx":9')
    (tmp_path / "page_0.jsonl").write_bytes(lines)
    (tmp_path / "catalogue.jsonl").unlink()
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert (found["damaged"], found["datapoints"]) == (1, 1)
    assert run("pages", "list", tmp_path).stdout.splitlines()[3].split()[-1] == "1"


def test_a_truncated_page_is_counted(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: 1, 1: 2})
    page = tmp_path / "page_0.safetensors"
    os.truncate(page, page.stat().st_size // 2)
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert (found["damaged"], found["datapoints"], found["state"]) == (1, 2, "closed")


def test_pickle_pages_are_listed_and_not_opened(tmp_path: Path, run: Run) -> None:
    (tmp_path / "epoch_2" / "debugger").mkdir(parents=True)
    (tmp_path / "epoch_2" / "debugger" / "page_0.pkl").write_bytes(b"no pickle at all")
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert (found["format"], found["state"], found["pages"], found["bytes"]) == ("pickle", "not opened", 1, 16)
    assert found["datapoints"] is None
    assert "pickle, not opened" in run("pages", "list", tmp_path).stdout


def test_no_captures_is_a_message_and_no_error(tmp_path: Path, run: Run) -> None:
    result = run("pages", "list", tmp_path)
    assert result.exit_code == 0
    assert (
        result.stdout == f"no captures in '{tmp_path}'; looked for pages in it, in debugger/ and in epoch_*/debugger/\n"
    )
    assert json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"] == []


def test_runs_one_level_below_are_suggested(tmp_path: Path, captured: Captured, run: Run) -> None:
    for name in ("run-09", "run-10"):
        captured(tmp_path / name / "epoch_0" / "debugger", {0: 1})
    assert f"there are runs below it, such as '{tmp_path / 'run-10'}'" in run("pages", "list", tmp_path).stdout


def test_a_debugger_folder_without_pages_is_empty(tmp_path: Path, run: Run) -> None:
    (tmp_path / "debugger").mkdir()
    (found,) = json.loads(run("pages", "list", tmp_path, "--json").stdout)["captures"]
    assert (found["state"], found["pages"], found["datapoints"]) == ("empty", 0, 0)


def test_a_missing_folder_is_an_error_of_use(tmp_path: Path, run: Run) -> None:
    result = run("pages", "list", tmp_path / "none")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_an_unreadable_folder_is_an_error(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)  # root may read everything, so that the refusal is put in here
    result = run("pages", "list", tmp_path)
    assert (result.exit_code, result.stderr) == (2, f"Error: cannot read '{tmp_path}': Permission denied\n")
