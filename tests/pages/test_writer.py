"""The writer: a queue bounded in bytes, one thread, and no way for a slow or broken disk to hang or hurt the caller."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.captures import datapoint, debugger, opened
from tests.sameness import canonical

from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.errors import PageError
from endoscope.pages import writer as page_writer
from endoscope.pages.sink import Captured, SafetensorsSink
from endoscope.pages.verify import verify_folder
from endoscope.pages.writer import OnFull, PageWriter, WriterClosed, WriterCounts

PATIENCE_S = 20.0
"""How long something that must happen may take; nothing waits so long when all is well."""
STUCK_S = 0.15
"""How long something that must not happen is watched."""
KB = torch.ones(256)


class Disk(SafetensorsSink):
    """Pages on a disk that writes only while ``open`` is set, and fails when ``fault`` raises."""

    def __init__(self, folder: Path, *, open: bool = True, fault: Callable[[str], None] = lambda what: None) -> None:
        super().__init__(folder, page_size=1 << 20, rank=None)
        self.open = threading.Event()
        self.reached = threading.Event()
        self.fault = fault
        if open:
            self.open.set()

    def _wait(self, what: str) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE_S)
        self.fault(what)

    def append(self, record: Captured) -> Mapping[str, str]:
        self._wait("append")
        return super().append(record)

    def flush(self) -> None:
        self._wait("flush")
        super().flush()

    def close(self, *, dropped: int) -> None:
        self._wait("close")
        super().close(dropped=dropped)


def writer(disk: Disk, *, queue_kb: int = 1024, on_full: OnFull = "block") -> PageWriter:
    return PageWriter(disk, queue_bytes=queue_kb << 10, on_full=on_full)


def put(w: PageWriter, idx: int, value: Any = KB) -> bool:
    return w.put(idx, {"x": snapshot(value)}, {})


class Call(threading.Thread):
    """A call on another thread: has it returned, and what."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self.function, self.args = function, args
        self.error: BaseException | None = None
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as e:
            self.error = e

    @property
    def stuck(self) -> bool:
        self.join(STUCK_S)
        return self.is_alive()

    def done(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "hangs"
        if self.error is not None:
            raise self.error
        return self.result


def put_until_full(w: PageWriter, most: int = 200) -> tuple[Call, list[int]]:
    """Put records of about 1.2 KB from another thread; returns it, and the list of those that were accepted so far."""
    accepted: list[int] = []

    def go() -> None:
        for idx in range(most):
            put(w, idx)
            accepted.append(idx)

    call = Call(go)
    before = -1
    while before != len(accepted):
        before = len(accepted)
        time.sleep(STUCK_S)
    return call, accepted


# ---------------------------------------------------------------- the bound
def test_the_loop_waits_when_the_queue_is_full(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=20)
    call, accepted = put_until_full(w)
    assert call.is_alive()
    assert 10 <= len(accepted) <= 20
    disk.open.set()
    call.done()
    assert w.flush()
    w.close()
    assert w.counts == WriterCounts(written=200)
    assert list(opened(tmp_path)) == list(range(200))


def test_a_full_queue_drops_by_name_and_the_count_is_kept(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=10, on_full="drop")
    taken = [idx for idx in range(100) if put(w, idx)]
    assert 4 <= len(taken) <= 10
    disk.open.set()
    assert w.flush()
    assert put(w, 100)
    disk.open.clear()
    taken += [100, *(idx for idx in range(101, 150) if put(w, idx))]
    disk.open.set()
    w.close()
    dropped = 150 - len(taken)
    assert w.counts == WriterCounts(written=len(taken), dropped=dropped)
    for catalogue in ("kept", "deleted"):
        outputs = opened(tmp_path)
        assert (list(outputs), outputs.dropped) == (taken, dropped)
        if catalogue == "kept":
            (tmp_path / "catalogue.jsonl").unlink()


def test_drops_are_told_by_the_debugger(
    tmp_path: Path, warnings_logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    append = SafetensorsSink.append
    monkeypatch.setattr(SafetensorsSink, "append", lambda self, r: gate.wait(PATIENCE_S) and append(self, r))
    with debugger(tmp_path, queue_mb=0.01, on_full="drop") as d:
        for idx in range(50):
            d.add_to_buffer({"x": KB}, datapoint(idx))
        gate.set()
        report = d.save_all(tmp_path)
    outputs = opened(tmp_path)
    assert report.dropped == outputs.dropped == 50 - len(outputs) > 30
    assert not report.complete
    assert f"{report.dropped} dropped because the queue was full" in str(report)
    assert any(f"{report.dropped} dropped" in w for w in warnings_logged)


def test_dropping_goes_on_counting_over_a_lost_record(tmp_path: Path) -> None:
    """A count that travels with a record is not lost with it."""
    faults = iter([True])

    def fault(what: str) -> None:
        if what == "append" and idx_faulty.is_set() and next(faults, False):
            raise OSError(5, "broken")

    idx_faulty = threading.Event()
    disk = Disk(tmp_path, open=False, fault=fault)
    w = writer(disk, queue_kb=5, on_full="drop")
    taken = sum(put(w, idx) for idx in range(20))
    disk.open.set()
    w.flush()
    idx_faulty.set()
    assert put(w, 20)
    w.flush()
    assert put(w, 21)
    w.close()
    assert w.counts == WriterCounts(written=taken + 1, dropped=20 - taken, lost=1)
    assert opened(tmp_path).dropped == 20 - taken


@pytest.mark.parametrize("on_full", ["block", "drop"])
def test_a_record_larger_than_the_queue_passes(on_full: OnFull, tmp_path: Path) -> None:
    w = writer(Disk(tmp_path), queue_kb=1, on_full=on_full)
    large = torch.arange(100_000)
    assert put(w, 0, large)
    assert w.flush()
    assert put(w, 1, large)
    w.close()
    assert canonical(opened(tmp_path)[1]["x"]) == canonical(large)


def test_a_large_record_waits_for_the_others(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=4)
    put(w, 0)
    call = Call(put, w, 1, torch.ones(10_000))
    assert call.stuck
    disk.open.set()
    assert call.done()
    w.close()
    assert list(opened(tmp_path)) == [0, 1]


def test_text_counts_too(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=20, on_full="drop")
    assert sum(put(w, idx, "x" * 5000) for idx in range(20)) <= 4
    disk.open.set()
    w.close()


# ---------------------------------------------------------------- written together
def test_records_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda *a: (calls.append(a), real(*a))[1])
    monkeypatch.setattr(page_writer, "TOGETHER_SECONDS", PATIENCE_S)
    w = writer(Disk(tmp_path))
    for idx in range(50):
        put(w, idx)
    assert w.flush()
    assert len(calls) == 3  # the page's first line, all tensors, all lines
    assert list(opened(tmp_path)) == list(range(50))
    w.close()


def test_a_record_waits_for_others_only_so_long(tmp_path: Path) -> None:
    """Whether it finds the thread at its work, waiting for more, or asleep since none came."""
    w = writer(Disk(tmp_path))
    for idx, pause in enumerate((0.0, 0.0, 0.05, 0.15, 0.35, 0.0)):
        time.sleep(pause)
        put(w, idx)
        until = time.monotonic() + PATIENCE_S
        while not list(tmp_path.iterdir()) or idx not in opened(tmp_path):
            assert time.monotonic() < until, f"record {idx} is never written without a flush"
            time.sleep(0.01)
    w.close()


def test_enough_bytes_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_writer, "TOGETHER_SECONDS", 1000.0)
    disk = Disk(tmp_path)
    w = writer(disk, queue_kb=64 << 10)
    put(w, 0)
    assert not disk.reached.wait(STUCK_S)
    put(w, 1, torch.zeros(page_writer.TOGETHER_BYTES // 4))
    assert disk.reached.wait(PATIENCE_S)
    w.close()


@pytest.mark.parametrize("on_full", ["block", "drop"])
def test_large_records_in_a_small_queue(on_full: OnFull, tmp_path: Path) -> None:
    """The thread is busy with all there is when the queue is full: whoever comes then must wake it again."""
    w = writer(Disk(tmp_path), queue_kb=8 << 10, on_full=on_full)
    large = torch.zeros(5 << 18)

    def work() -> int:
        taken = 0
        for idx in range(12):
            taken += put(w, idx, large)
            if idx % 4 == 3:
                time.sleep(0.05)  # the thread has time to fall asleep
                assert w.flush()
        return taken

    taken = Call(work).done()
    Call(w.close).done()
    assert w.counts == WriterCounts(written=taken, dropped=12 - taken)
    assert len(opened(tmp_path)) == taken > 2


def test_a_drop_then_nothing_then_a_flush(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=4, on_full="drop")
    put(w, 0)
    assert disk.reached.wait(PATIENCE_S)
    while put(w, 1, torch.ones(900)):
        pass
    disk.open.set()
    time.sleep(STUCK_S)
    assert Call(w.flush).done()
    Call(w.close).done()


def test_a_second_close_waits_too(tmp_path: Path) -> None:
    """The first may have been interrupted by Ctrl-C."""
    disk = Disk(tmp_path, open=False)
    w = writer(disk)
    put(w, 0)
    calls = [Call(w.close), Call(w.close)]
    assert all(call.stuck for call in calls)
    disk.open.set()
    for call in calls:
        call.done()
    assert list(opened(tmp_path)) == [0]


def test_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]) -> None:
    w = writer(Disk(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        assert not put(w, 0)
    assert put(w, 1)
    w.flush()
    w.close()
    assert w.counts == WriterCounts(written=1, lost=1)
    assert len(warnings_logged) == 1


def test_whatever_is_raised_the_thread_goes_on(tmp_path: Path) -> None:
    w = writer(Disk(tmp_path))
    device = SimpleNamespace(synchronize=lambda: sys.exit("now"))
    w.put(0, {"x": Snapshot(1, [device])}, {})
    put(w, 1)
    assert Call(w.flush).done() is False
    w.close()
    assert w.counts == WriterCounts(written=1, lost=1)


# ---------------------------------------------------------------- flush and close
def test_flush_returns_when_all_before_it_is_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk)
    put(w, 0)
    call = Call(w.flush)
    assert call.stuck
    disk.open.set()
    assert call.done() is True
    assert list(opened(tmp_path)) == [0]
    w.close()


def test_flush_from_several_threads_while_others_put(tmp_path: Path) -> None:
    w = writer(Disk(tmp_path), queue_kb=16)

    def work(k: int) -> list[bool]:
        done = []
        for idx in range(k * 100, k * 100 + 50):
            put(w, idx)
            done.append(w.flush())
            assert idx in opened(tmp_path)
        return done

    calls = [Call(work, k) for k in range(4)]
    assert all(all(call.done()) for call in calls)
    w.close()
    assert len(opened(tmp_path)) == 200
    assert verify_folder(tmp_path) == []


def test_flush_of_a_writer_that_never_wrote(tmp_path: Path) -> None:
    w = writer(Disk(tmp_path))
    assert w.flush()
    w.close()
    assert w.flush()
    assert list(tmp_path.iterdir()) == []


def test_flush_during_a_close_does_not_acknowledge_what_is_not_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open=False)
    w = writer(disk)
    put(w, 0)
    assert disk.reached.wait(PATIENCE_S)
    closing = Call(w.close)
    assert closing.stuck
    flushing = Call(w.flush)
    assert flushing.stuck or flushing.done() is False
    disk.open.set()
    closing.done()
    flushing.done()
    assert list(opened(tmp_path)) == [0]


def test_close_twice_and_put_after_close(tmp_path: Path) -> None:
    w = writer(Disk(tmp_path))
    put(w, 0)
    w.close()
    w.close()
    with pytest.raises(WriterClosed, match="this page writer is closed") as e:
        put(w, 1)
    assert isinstance(e.value, PageError)
    assert list(opened(tmp_path)) == [0]
    assert verify_folder(tmp_path) == []


def test_a_put_that_waits_while_the_writer_closes_is_not_lost_in_silence(tmp_path: Path) -> None:
    """It is written, or it is told that the writer is closed."""
    disk = Disk(tmp_path, open=False)
    w = writer(disk, queue_kb=5)
    for idx in range(3):
        put(w, idx)
    waiting = Call(put, w, 3)
    assert waiting.stuck
    closing = Call(w.close)
    assert closing.stuck
    disk.open.set()
    closing.done()
    try:
        accepted = waiting.done()
    except WriterClosed:
        accepted = False
    assert list(opened(tmp_path)) == ([0, 1, 2, 3] if accepted else [0, 1, 2])


def test_a_debugger_takes_records_while_another_thread_saves(tmp_path: Path) -> None:
    """Every record goes to one of the saved folders, or to the last one; none is lost between two."""
    with debugger(None, page_size_mb=0.05, spool_dir=tmp_path) as d:
        stop = threading.Event()

        def put_all() -> int:
            idx = 0
            while not stop.is_set():
                d.add_to_buffer({"x": idx}, datapoint(idx))
                idx += 1
            return idx

        call = Call(put_all)
        for k in range(10):
            time.sleep(0.01)
            d.save_all(tmp_path / f"saved{k}")
        stop.set()
        total = call.done()
        d.save_all(tmp_path / "saved10")
    found = [idx for k in range(11) for idx in opened(tmp_path / f"saved{k}")]
    assert sorted(found) == list(range(total))


# ---------------------------------------------------------------- errors in the thread
class Surprise(Exception):
    """Something that no disk raises."""


@pytest.mark.parametrize("error", [Surprise("odd"), MemoryError(), OSError(28, "full"), ValueError("bad")], ids=repr)
def test_an_error_in_the_thread_is_counted_and_told_once(
    error: Exception, tmp_path: Path, warnings_logged: list[str]
) -> None:
    def fault(what: str) -> None:
        if what == "append":
            raise error

    w = writer(Disk(tmp_path, fault=fault), queue_kb=4)
    for idx in range(20):
        assert Call(put, w, idx).done()
    assert Call(w.flush).done() is False
    Call(w.close).done()
    assert w.counts == WriterCounts(lost=20)
    assert len(warnings_logged) == 1
    assert type(error).__name__ in warnings_logged[0]


@pytest.mark.parametrize("what", ["flush", "close"])
def test_an_error_in_flush_or_close_does_not_hang(what: str, tmp_path: Path, warnings_logged: list[str]) -> None:
    def fault(now: str) -> None:
        if now == what:
            raise Surprise(what)

    w = writer(Disk(tmp_path, fault=fault))
    put(w, 0)
    Call(w.flush).done()
    Call(w.close).done()
    assert len(warnings_logged) == 1
    assert list(opened(tmp_path)) == [0]


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
def test_the_thread_leaves_the_filters_of_warnings_alone(
    page_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a second thread `warnings.catch_warnings` puts back filters that the user has changed since."""
    entered: list[str] = []

    class Spy(warnings.catch_warnings):  # type: ignore[type-arg]
        def __enter__(self) -> Any:
            entered.append(threading.current_thread().name)
            return super().__enter__()

    batch = {"x": torch.ones(2, 3), "sparse": torch.eye(2).to_sparse()}
    with debugger(tmp_path, page_format=page_format) as d:
        monkeypatch.setattr(warnings, "catch_warnings", Spy)
        d.add_to_buffer(batch, datapoint([0, 1]))
        d.flush()
        monkeypatch.undo()
    assert {name for name in entered if name != threading.current_thread().name} == set()


def test_the_thread_ends_with_its_writer(tmp_path: Path) -> None:
    before = threading.active_count()
    for k in range(10):
        folder = tmp_path / str(k)
        folder.mkdir()
        w = writer(Disk(folder))
        put(w, 0)
        w.close()
    assert threading.active_count() == before


def test_a_forgotten_debugger_finishes_its_pages(tmp_path: Path) -> None:
    d = debugger(tmp_path)
    d.add_to_buffer({"x": 1}, datapoint(0))
    del d
    gc.collect()
    [page] = opened(tmp_path).pages
    assert page.closed
    assert verify_folder(tmp_path) == []


def test_what_was_put_is_not_changed_by_what_comes_after(tmp_path: Path) -> None:
    """The caller's tensors are copied before `add_to_buffer` returns, however late the disk is."""
    given = {"t": torch.zeros(1000), "n": [1, 2], "a": torch.zeros(3).numpy()}
    with debugger(tmp_path) as d:
        d.add_to_buffer({"x": given}, datapoint(0))
        given["t"].add_(1)
        given["n"].append(3)
        given["a"] += 1
    assert canonical(opened(tmp_path)[0]["x"]) == canonical(
        {"t": torch.zeros(1000), "n": [1, 2], "a": torch.zeros(3).numpy()}
    )
