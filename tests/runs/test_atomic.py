"""Files are complete or absent."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from endoscope.runs import atomic
from endoscope.runs.atomic import remove_leftovers, replacing, write_json


def test_the_file_exists_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with replacing(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_leaves_the_earlier_file(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_the_error_of_a_full_disk_names_the_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, call, full)
    with pytest.raises(OSError, match=r"No space left on device: '.*progress.json'"):
        write_json(tmp_path / "progress.json", {})
    assert os.listdir(tmp_path) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "none" / "a.json", {})


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"nan": math.nan, "inf": -math.inf, "text": "ü…日", "undecodable": os.fsdecode(b"a\xff")}
    write_json(tmp_path / "a.json", value)
    data = (tmp_path / "a.json").read_bytes()
    assert "ü…日".encode() in data
    found = json.loads(data)
    assert math.isnan(found.pop("nan"))
    assert found == {k: v for k, v in value.items() if k != "nan"}


def test_only_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in (".checkpoint.pt.123", ".run.json.9", ".gitignore", ".hidden", "checkpoint.pt", "page_0.7", ".a.part"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.1").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [".gitignore", ".hidden", "checkpoint.pt", "page_0.7", ".a.part", ".folder.1"]
    )
