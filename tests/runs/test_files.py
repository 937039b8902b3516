"""Untrusted files: read within their limits, or reported."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from endoscope.runs import files as files_module
from endoscope.runs.files import Files, checked, clean, load_json, opened, read_object


def decode(file: BinaryIO) -> tuple[Any, list[str]]:
    return checked(load_json(file)), []


def problem_of(folder: Path, name: str = "a.json") -> str:
    """The problem with a file that cannot be read."""
    files = Files(folder)
    assert files.read(name, decode) is None
    (problem,) = files.problems
    assert problem.startswith(f"{name}: ")
    return problem.removeprefix(f"{name}: ")


# ---------------------------------------------------------------- what is no file to read
def test_a_missing_file_is_a_problem_if_it_is_needed(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.read("a.json", decode, needed=lambda: False) is None
    assert files.problems == []
    assert files.read("epoch_0/a.json", decode) is None
    assert files.problems == ["epoch_0/a.json: it is missing"]


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert problem_of(tmp_path) == "it is not a regular file"


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    assert problem_of(tmp_path) == "it is not a regular file"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["a.json", "epoch_0/a.json"])
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside):
        folder.mkdir()
    (outside / "a.json").write_text("{}")
    (inside / name.split("/")[0]).symlink_to(outside if "/" in name else outside / "a.json")
    assert "links are not followed" in problem_of(inside, name)


def test_twin_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.json").write_text("{}")
    (tmp_path / "latest").symlink_to(tmp_path / "real")
    assert Files(tmp_path / "latest").read("a.json", decode) == {}


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "epoch_0").write_text("")
    assert "is not a folder" in problem_of(tmp_path, "epoch_0/a.json")


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == "a.json":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(files_module.os, "open", refusing)  # root may open anything
    assert problem_of(tmp_path) == "it cannot be opened: Permission denied"


# ---------------------------------------------------------------- what is in it
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": 1', "it is not JSON: Expecting ',' delimiter"),
        (b"\xff\xfe{}", "it is not UTF-8: invalid start byte at byte 0"),
        ('{"a": 1}'.encode("utf-16"), "it is not UTF-8"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"x": {"b": 1, "b": 1}}', "the key 'b' occurs twice"),
        (b'{"\\udc80": 1, "?": 2}', "the key '?' occurs twice"),
        (b"[" * 100_000, "it is nested deeper than 64 levels"),
        (b"[" * 65 + b"]" * 65, "it is nested deeper than 64 levels"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "it is nested deeper than 64 levels"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
)
def test_refused_json(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert problem_of(tmp_path).startswith(problem)


@pytest.mark.parametrize("value", [[[]], {"a": [1.5, None, True, "ä"]}, float("inf"), 10**300])
def test_twin_accepted_json(value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value))
    files = Files(tmp_path)
    assert files.read("a.json", decode) == value
    assert files.problems == []


def test_64_levels_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"[" * 64 + b"]" * 64)
    assert Files(tmp_path).read("a.json", decode) is not None


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(files_module.JSON_LIMIT + 1)  # a hole, which takes no room
    limit = files_module.JSON_LIMIT
    assert problem_of(tmp_path) == f"it has {limit + 1} bytes; at most {limit} are read"


def test_text_can_always_be_encoded() -> None:
    assert clean("ä\udcff") == "ä?"
    assert checked({"\udcff": ["\udcff", {"a": "\udc00"}]}) == {"?": ["?", {"a": "?"}]}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_an_object_or_none(content: bytes, tmp_path: Path) -> None:
    assert read_object(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_bytes(content)
    assert read_object(tmp_path / "a.json") == {}


def test_an_object_is_returned_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"path": "\\udcff"}')
    assert read_object(tmp_path / "a.json") == {"path": "\udcff"}


# ---------------------------------------------------------------- cache
class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, file: BinaryIO) -> tuple[Any, list[str]]:
        self.calls += 1
        return decode(file)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path, files, counting = tmp_path / "a.json", Files(tmp_path), Counting()
    path.write_text("[1]")
    assert [files.read("a.json", counting) for _ in range(3)] == [[1]] * 3
    assert counting.calls == 1
    (tmp_path / "b.json").write_text("[2]")
    about = path.stat()
    os.replace(tmp_path / "b.json", path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # same size, same time, another file
    assert files.read("a.json", counting) == [2]
    path.write_text("[2")
    assert files.read("a.json", counting) is None
    assert len(files.problems) == 1
    assert files.read("a.json", counting) is None
    assert counting.calls == 3  # what is wrong is known as well
    path.write_text("[3]")
    assert files.read("a.json", counting) == [3]
    assert files.problems == []
    path.unlink()
    assert files.read("a.json", counting) is None
    assert files.problems == ["a.json: it is missing"]


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_CACHE", 250)
    files, counting = Files(tmp_path), Counting()
    for k in range(4):
        (tmp_path / f"{k}.json").write_text(json.dumps("x" * 98))
        files.read(f"{k}.json", counting)
    files.read("3.json", counting)
    files.read("2.json", counting)
    assert counting.calls == 4
    files.read("0.json", counting)
    assert counting.calls == 5
    (tmp_path / "big.json").write_text(json.dumps("x" * 1000))
    assert files.read("big.json", counting) == "x" * 1000


def test_many_problems_of_one_file_are_summarised(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note("a", [str(k) for k in range(30)])
    assert files.problems == [*(f"a: {k}" for k in range(10)), "a: and 20 more"]
    files.note("a", [])
    assert files.problems == []


def test_readers_of_other_files_do_not_wait(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"x": 1}')
    files, inside, go_on = Files(tmp_path), threading.Event(), threading.Event()

    def slowly(file: BinaryIO) -> tuple[Any, list[str]]:
        inside.set()
        assert go_on.wait(20)
        return decode(file)

    thread = threading.Thread(target=lambda: files.read("a.json", slowly))
    thread.start()
    assert inside.wait(20)
    assert files.read("b.json", decode) == {"x": 1}  # or this never returns
    assert files.problems == []
    go_on.set()
    thread.join()
    assert files.read("a.json", slowly) == {"x": 1}


def test_several_threads_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    files, found = Files(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(files.read("a.json", decode))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1]] * 8


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "epoch_0").mkdir()
    (tmp_path / "epoch_0" / "a.json").write_text("{")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("epoch_0/a.json", "epoch_0/b.json", "epoch_1/a.json"):
        Files(tmp_path).read(name, decode)
    with pytest.raises(KeyError), opened(tmp_path, "epoch_0/a.json"):
        raise KeyError
    assert len(os.listdir("/proc/self/fd")) == before
