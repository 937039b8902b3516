"""The store, where an interrupt or a signal handler meets it in the middle of a save or a reset."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened

from endoscope.errors import FolderInUseError
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.pages.writer import WriterCounts
from endoscope.tensors import snapshot

PATIENCE_S = 20.0


def put(store: PageStore, idx: int) -> bool:
    return store.put(idx, {"value": snapshot({"output": torch.tensor([float(idx)])})}, {})


def in_the_middle(store: PageStore, act: Callable[[], Any]) -> None:
    """Have the next closing of pages, while it waits for the writer thread, call ``act`` first, once."""
    ended = store._open.writer._ended  # type: ignore[union-attr]
    wait = ended.wait

    def waiting(*args: Any) -> bool:
        ended.wait = wait  # type: ignore[method-assign]
        act()
        return wait(*args)

    ended.wait = waiting  # type: ignore[method-assign]


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


def test_after_an_interrupted_save_capture_goes_on(store: PageStore, tmp_path: Path) -> None:
    def work() -> None:
        assert put(store, 0)
        in_the_middle(store, interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save_all(tmp_path / "pages")
        assert put(store, 1)  # nobody has reset it
        _, counts, problem = store.save_all(tmp_path / "pages")
        assert (counts.written, problem) == (2, None)

    patiently(work)
    assert {idx: record["value"]["output"].item() for idx, record in opened(tmp_path / "pages").items()} == {0: 0, 1: 1}


def test_a_signal_handler_in_the_middle_of_a_save_does_not_hang(store: PageStore, tmp_path: Path) -> None:
    def work() -> None:
        assert put(store, 0)
        answers: list[bool] = []
        in_the_middle(store, lambda: answers.append(put(store, 1)))
        _, counts, _ = store.save_all(tmp_path / "pages")
        assert answers == [False]
        assert (counts.written, counts.dropped) == (1, 1)
        store.reset(tmp_path / "later")
        assert put(store, 2)
        store.close()

    patiently(work)
    assert sorted(opened(tmp_path / "pages")) == [0]
    assert sorted(opened(tmp_path / "later")) == [2]


def writer_threads() -> int:
    return sum(thread.name == "endoscope-writer" for thread in threading.enumerate())


def test_a_reset_into_a_folder_has_the_thread_ready_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    before = writer_threads()
    store = PageStore(None, StoreSettings(1 << 20, 1 << 20))
    store.reset()  # the twin: into a spool, which is made when something comes
    assert writer_threads() == before
    store.reset(tmp_path / "pages")
    assert writer_threads() == before + 1
    store.close()
    assert writer_threads() == before
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
