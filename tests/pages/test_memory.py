"""Memory is bounded by what the user set, whatever the length of the run, the page size, or the size of the capture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.captures import datapoint, debugger, write
from tests.warm import Say, WarmProcess

from endoscope.pages.reader import load_debug_outputs
from endoscope.pages.verify import verify_folder

MB = 1 << 20


def write_much(say: Say, folder: str, total_mb: int, record_kb: int, page_size_mb: float, queue_mb: float) -> None:
    value = torch.ones(record_kb * 256)
    with debugger(Path(folder), page_size_mb=page_size_mb, queue_mb=queue_mb) as d:
        for idx in range(total_mb * 1024 // record_kb):
            d.add_to_buffer({"x": value}, datapoint(idx))
        say(d.flush())
    say("closed")


@pytest.mark.parametrize("page_size_mb", [4, 1000])
def test_writing_takes_the_queue_and_little_more(page_size_mb: float, warm: WarmProcess, tmp_path: Path) -> None:
    outcome = warm.run(
        "tests.pages.test_memory:write_much",
        folder=str(tmp_path), total_mb=200, record_kb=1024, page_size_mb=page_size_mb, queue_mb=16,
    )  # fmt: skip
    assert outcome.said == [True, "closed"], outcome.stderr
    assert outcome.peak_growth_mb < 80


def test_twin_a_large_queue_is_seen(warm: WarmProcess, tmp_path: Path) -> None:
    """The measure does see memory: a queue that may hold everything holds much of it."""
    outcome = warm.run("tests.pages.test_memory:hold", mb=150)
    assert 140 < outcome.peak_growth_mb < 200


def hold(say: Say, mb: int) -> None:
    held = bytearray(mb * MB)
    held[::4096] = b"x" * len(held[::4096])
    say(len(held))


def test_many_small_records_take_little(warm: WarmProcess, tmp_path: Path) -> None:
    """What is kept for each record of a page until it closes is a small multiple of its entry in the header."""
    outcome = warm.run(
        "tests.pages.test_memory:write_much",
        folder=str(tmp_path), total_mb=20, record_kb=1, page_size_mb=100, queue_mb=4,
    )  # fmt: skip
    assert outcome.said == [True, "closed"], outcome.stderr
    assert outcome.peak_growth_mb < 100


def read_one(say: Say, folder: str, idx: int) -> None:
    say(float(load_debug_outputs(folder)[idx]["x"].sum()))


def verify_all(say: Say, folder: str) -> None:
    say(len(verify_folder(Path(folder))))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records of 48 MB and a batch of 64 datapoints of 1 MB, in one page."""
    single, batch = torch.ones(12 * MB), torch.ones(64, MB // 4)
    return write(
        tmp_path_factory.mktemp("large"),
        [(100, {"x": single}), (101, {"x": single}), ([*range(64)], {"x": batch})],
        page_size_mb=1000,
    )


@pytest.mark.parametrize(("idx", "mb"), [(100, 48), (5, 1)], ids=["a record", "a datapoint of a batch"])
def test_reading_takes_little_more_than_what_is_read(idx: int, mb: int, large: Path, warm: WarmProcess) -> None:
    outcome = warm.run("tests.pages.test_memory:read_one", folder=str(large), idx=idx)
    assert outcome.said == [mb * MB / 4], outcome.stderr
    assert outcome.peak_growth_mb < 3 * mb + 40


def test_verifying_takes_one_record_at_a_time(large: Path, warm: WarmProcess) -> None:
    outcome = warm.run("tests.pages.test_memory:verify_all", folder=str(large))
    assert outcome.said == [0], outcome.stderr
    assert outcome.peak_growth_mb < 3 * 64 + 40
