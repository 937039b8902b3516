"""The writer's queue while it is being closed: every record that was taken is written, or its owner is told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tests.captures import opened

from endoscope import SequentialDebugger
from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.pages.verify import verify_folder
from endoscope.pages.writer import PageWriter, WriterClosed


class SlowDisk:
    """A sink whose first write lasts until somebody says so."""

    unsaved = 0

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.entered, self.leave = threading.Event(), threading.Event()

    def append(self, record: Any) -> None:
        self.entered.set()
        assert self.leave.wait(10)
        self.written.append(record.idx)

    def write(self) -> list[Any]:
        return []

    def flush(self) -> None:
        pass

    def close(self, *, dropped: int) -> None:
        pass


def record() -> dict[str, Snapshot]:
    return {"a": snapshot(torch.zeros(100))}


class Waiting:
    """Tells when a thread has begun to wait for room in the queue: it has then asked for the second record's bytes."""

    def __init__(self, pool: ThreadPoolExecutor, writer: PageWriter) -> None:
        self.put = pool.submit(writer.put, 1, record(), {})

    def __enter__(self) -> Waiting:
        for _ in range(50):  # there is no event for "waits": give it time, and the outcome is the same if it was late
            if self.put.done():
                break
            threading.Event().wait(0.005)
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def test_a_record_that_waits_while_the_writer_closes() -> None:
    disk = SlowDisk()
    writer = PageWriter(disk, queue_bytes=300)
    with ThreadPoolExecutor(2) as pool:
        assert writer.put(0, record(), {})
        assert disk.entered.wait(10)
        with Waiting(pool, writer) as waiting:
            closing = pool.submit(writer.close)
            threading.Event().wait(0.05)
            disk.leave.set()
        closing.result(10)
        error = waiting.put.exception(10)
    if error is None:  # taken: then it is written
        assert disk.written == [0, 1]
        assert writer.counts.written == 2
    else:  # refused: then the store gives it to the next writer
        assert isinstance(error, WriterClosed)
        assert disk.written == [0]


def test_without_closing_it_is_written() -> None:
    disk = SlowDisk()
    writer = PageWriter(disk, queue_bytes=300)
    with ThreadPoolExecutor(1) as pool:
        writer.put(0, record(), {})
        with Waiting(pool, writer) as waiting:
            disk.leave.set()
        assert waiting.put.result(10)
    writer.close()
    assert disk.written == [0, 1]


def test_a_full_queue_and_a_reset(tmp_path: Path) -> None:
    """Four threads wait for room most of the time while another begins new captures: all end, no record is missing."""
    debugger = SequentialDebugger([], torch.nn.Identity(), output_dir=tmp_path / "0", queue_mb=2e-3)
    value = torch.zeros(300)

    def put(thread: int) -> None:
        for k in range(40):
            debugger.add_to_buffer({"a": value}, {"meta_info": {"idx": thread * 1000 + k}})

    def reset() -> None:
        for k in range(1, 8):
            debugger.reset_buffer(tmp_path / f"{k}")

    # Daemons: a thread that waits for ever must fail this test, not hold up the others.
    threads = [threading.Thread(target=put, args=(k,), daemon=True) for k in range(4)]
    threads.append(threading.Thread(target=reset, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(8)
        assert not thread.is_alive(), "a thread waits for ever"
    debugger.close()
    folders = [p for p in tmp_path.iterdir() if any(p.iterdir())]
    found = sorted(idx for folder in folders for idx in opened(folder))
    assert found == [t * 1000 + k for t in range(4) for k in range(40)]


def test_two_debuggers_that_share_a_folder(tmp_path: Path) -> None:
    """Each finds pages of the other where its own were to be: both go on beside them, and nothing is lost."""
    config: list[Any] = []
    first, second = (
        SequentialDebugger(config, torch.nn.Identity(), page_size_mb=0.004, output_dir=tmp_path) for _ in range(2)
    )
    for k in range(30):
        first.add_to_buffer({"a": torch.full((100,), float(k))}, {"meta_info": {"idx": k}})
        second.add_to_buffer({"a": torch.full((100,), float(100 + k))}, {"meta_info": {"idx": 100 + k}})
        if k % 7 == 0:
            assert first.flush()
            assert second.flush()
    assert first.save_all(tmp_path).complete
    assert second.save_all(tmp_path).complete
    found = opened(tmp_path)
    assert {idx: float(found[idx]["a"][0]) for idx in found} == {k: float(k) for k in [*range(30), *range(100, 130)]}
    assert verify_folder(tmp_path) == []
