"""The writer's queue while it is being closed: every record that was taken is written, or its owner is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from tests.captures import opened

from endoscope import SequentialDebugger
from endoscope.pages.verify import verify_folder


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
