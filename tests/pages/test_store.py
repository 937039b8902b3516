"""The store, when an interrupt or another thread comes in the middle of a save or a reset."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from tests.captures import opened

from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.errors import FolderInUseError
from endoscope.pages import pickle_pages
from endoscope.pages import store as page_store
from endoscope.pages.folders import ensure_folder
from endoscope.pages.store import PageFormat, PageStore, StoreSettings
from endoscope.pages.verify import verify_folder
from endoscope.pages.writer import PageWriter, WriterCounts

PATIENCE_S = 20.0


def put(store: PageStore, idx: int) -> bool:
    return store.put(idx, {"value": snapshot({"output": torch.tensor([float(idx)])})}, {})


def held(folder: Path) -> dict[int, float]:
    """What `put` has put there, by index."""
    return {idx: record["value"]["output"].item() for idx, record in opened(folder).items()}


def on_another_thread(act: Callable[[], Any], wait_s: float = PATIENCE_S) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(wait_s)
    return thread


def patiently(work: Callable[[], None]) -> None:
    """Run ``work`` on a thread of its own: one that hangs fails the test."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


@pytest.fixture(params=[True, False], ids=["streamed", "spooled"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PageStore:
    return PageStore(tmp_path / "pages" if request.param else None, StoreSettings(1 << 20, 1 << 20))


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "while waiting", "after"])
def test_after_an_interrupted_save_capture_goes_on(
    when: str, store: PageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PageWriter.close

    def close(self: PageWriter) -> None:
        monkeypatch.undo()
        if when == "while waiting":
            monkeypatch.setattr(threading.Event, "wait", lambda *_: interrupted())
        if when != "before":
            try:
                real(self)
            finally:
                monkeypatch.undo()
        interrupted()

    def work() -> None:
        assert put(store, 0)
        monkeypatch.setattr(PageWriter, "close", close)
        with pytest.raises(KeyboardInterrupt):
            store.save_all(tmp_path / "pages")
        assert put(store, 1)  # without a reset
        assert store.flush()
        _, counts, problem = store.save_all(tmp_path / "pages")
        assert (counts.written, problem) == (2, None)

    patiently(work)
    assert held(tmp_path / "pages") == {0: 0, 1: 1}


def writer_threads() -> set[threading.Thread]:
    """Stores of other tests may not have been collected yet: what is new is what counts."""
    return {thread for thread in threading.enumerate() if thread.name == "endoscope-writer"}


def wait_for_writer_threads(count: int, *, besides: set[threading.Thread]) -> None:
    """One that finds its work taken, or its writer closed, ends a moment later."""
    until = time.monotonic() + PATIENCE_S / 4
    while len(writer_threads() - besides) != count:
        assert time.monotonic() < until, f"{writer_threads() - besides}, not {count}"
        time.sleep(0.01)


def at_the_writers_start(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, when: Literal["before", "after"]
) -> None:
    """Have ``act`` called inside the next ``Thread.start`` of a writer, before or after the thread is there; once."""
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name != "endoscope-writer":
            real(self)
            return
        monkeypatch.setattr(threading.Thread, "start", real)
        if when == "after":
            real(self)
        act()
        if when == "before":
            real(self)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("call", ["reset", "put"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupted_while_the_thread_is_started_capture_goes_on_with_one_thread(
    when: Literal["before", "after"], call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = writer_threads()
    store = PageStore(tmp_path / "pages" if call == "put" else None, StoreSettings(1 << 20, 1 << 20))
    at_the_writers_start(monkeypatch, interrupted, when=when)

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            store.reset(tmp_path / "pages") if call == "reset" else put(store, 1000)
        assert all(put(store, idx) for idx in range(200))
        wait_for_writer_threads(1, besides=before)
        assert store.flush()
        assert held(tmp_path / "pages") == {idx: idx for idx in range(200)}
        assert store.counts == WriterCounts(written=200)
        store.close()
        assert writer_threads() <= before

    patiently(work)
    assert held(tmp_path / "pages") == {idx: idx for idx in range(200)}
    assert verify_folder(tmp_path / "pages") == []


def test_a_reset_into_a_folder_has_the_thread_ready_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    before = writer_threads()
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    store.reset()  # the twin: into a spool, which is made when something comes
    assert writer_threads() <= before
    store.reset(tmp_path / "pages")
    assert len(writer_threads() - before) == 1
    store.close()
    assert writer_threads() <= before
    assert [*(tmp_path / "pages").iterdir()] == []


def test_a_writer_that_is_ready_and_was_given_nothing_refuses_no_folder(tmp_path: Path) -> None:
    earlier = PageStore(tmp_path / "there", StoreSettings(1 << 20, 1 << 20))
    assert put(earlier, 0)
    earlier.close()
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    store.reset(tmp_path / "pages")
    assert store.save_all(tmp_path / "there")[1:] == (WriterCounts(), None)
    store.reset(tmp_path / "pages")
    assert put(store, 1)  # the twin
    with pytest.raises(FolderInUseError, match="already holds pages"):
        store.save_all(tmp_path / "there")
    store.close()
    assert sorted(opened(tmp_path / "there")) == [0]


# ---------------------------------------------------------------- a target that is in use
@pytest.fixture
def in_use(tmp_path: Path) -> Path:
    """A folder with an earlier capture: of one record, 100."""
    earlier = PageStore(tmp_path / "there", StoreSettings(1 << 20, 1 << 20))
    assert put(earlier, 100)
    earlier.close()
    return tmp_path / "there"


def test_a_first_record_of_another_thread_just_before_the_pages_are_closed_overwrites_nothing(
    in_use: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    store.reset(tmp_path / "pages")
    real = PageWriter.close

    def close(self: PageWriter) -> None:
        monkeypatch.setattr(PageWriter, "close", real)
        on_another_thread(lambda: put(store, 1))
        real(self)

    monkeypatch.setattr(PageWriter, "close", close)

    def work() -> None:
        with pytest.raises(FolderInUseError, match="already holds pages"):
            store.save_all(in_use)
        assert store.save_all(tmp_path / "saved")[1:] == (WriterCounts(written=1), None)

    patiently(work)
    assert held(in_use) == {100: 100}
    assert held(tmp_path / "saved") == {1: 1}


def test_a_first_record_of_another_thread_while_the_target_is_looked_at_belongs_to_what_comes_next(
    in_use: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    store.reset(tmp_path / "pages")
    threads: list[threading.Thread] = []

    def make(*args: Any) -> None:
        threads.append(on_another_thread(lambda: put(store, 1), wait_s=0.3))  # it may have to wait for this save
        ensure_folder(*args)

    monkeypatch.setattr(page_store, "ensure_folder", make)

    def work() -> None:
        assert store.save_all(in_use)[1:] == (WriterCounts(), None)
        monkeypatch.undo()
        (thread,) = threads
        thread.join(PATIENCE_S)
        assert store.save_all(tmp_path / "saved")[1:] == (WriterCounts(written=1), None)

    patiently(work)
    assert held(in_use) == {100: 100}
    assert held(tmp_path / "saved") == {1: 1}


@pytest.mark.parametrize("then", ["overwrite", "another folder"])
@pytest.mark.parametrize("meanwhile", [True, False], ids=["captured-meanwhile", "idle-meanwhile"])
@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
@pytest.mark.parametrize("place", ["streamed", "spooled", "reset"])
def test_after_a_refused_save_everything_is_still_to_be_saved(
    place: str, page_format: PageFormat, meanwhile: bool, then: str, in_use: Path, tmp_path: Path
) -> None:
    settings = StoreSettings(1 << 20, 1 << 20, page_format=page_format)
    store = PageStore(tmp_path / "pages" if place == "streamed" else None, settings)
    if place == "reset":
        store.reset(tmp_path / "pages")
    for idx in range(3):
        assert put(store, idx)
    for idx in range(3, 5):
        with pytest.raises(FolderInUseError, match="already holds pages"):
            store.save_all(in_use)
        if meanwhile:
            assert put(store, idx)
    assert held(in_use) == {100: 100}
    count = 5 if meanwhile else 3
    if then == "overwrite":
        target = in_use
        assert store.save_all(target, overwrite=True) == (target, WriterCounts(written=count), None)
    else:
        target = tmp_path / "saved"
        assert store.save_all(target) == (target, WriterCounts(written=count), None)
        assert held(in_use) == {100: 100}
    assert store.save_all(tmp_path / "again")[1:] == (WriterCounts(), None)  # they are counted once
    store.close()
    if page_format == "pickle":
        found = {idx: record["value"]["output"].item() for idx, record in pickle_pages.load(target).items()}
    else:
        found = held(target)
        assert verify_folder(target) == []
    assert found == {idx: idx for idx in range(count)}


def test_losses_are_not_forgotten_by_a_refused_save(in_use: Path) -> None:
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    assert put(store, 0)
    broken = SimpleNamespace(synchronize=lambda: sys.exit("now"))
    store.put(1, {"value": Snapshot(1, [broken])}, {})
    assert not store.flush()
    with pytest.raises(FolderInUseError):
        store.save_all(in_use)
    assert store.counts == WriterCounts(written=1, lost=1)
    assert not store.flush()
    assert put(store, 2)
    assert not store.flush()
    assert store.counts == WriterCounts(written=2, lost=1)
    _, counts, _ = store.save_all(in_use, overwrite=True)
    assert counts == WriterCounts(written=2, lost=1)
    assert counts.problem is not None
    assert put(store, 3)
    assert store.flush()
    store.close()


def test_what_a_refused_save_leaves_in_the_spool_is_not_dropped_in_silence(
    in_use: Path, tmp_path: Path, warnings_logged: list[str]
) -> None:
    (tmp_path / "spools").mkdir()
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20, spool_dir=tmp_path / "spools"))
    assert put(store, 0)
    with pytest.raises(FolderInUseError):
        store.save_all(in_use)
    assert len([*(tmp_path / "spools").iterdir()]) == 1
    store.close()
    assert ["1 captured records were never saved" in warning for warning in warnings_logged] == [True]
    assert [*(tmp_path / "spools").iterdir()] == []


def test_a_failed_move_is_counted_once(store: PageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    assert put(store, 0)
    with monkeypatch.context() as patch:
        patch.setattr(page_store, "replace_pages", full)
        for _ in range(2):
            _, counts, problem = store.save_all(tmp_path / "saved")
            assert counts == WriterCounts()
            assert problem is not None
    assert put(store, 1)
    assert store.save_all(tmp_path / "saved")[1:] == (WriterCounts(written=2), None)
    store.close()
    assert held(tmp_path / "saved") == {0: 0, 1: 1}
