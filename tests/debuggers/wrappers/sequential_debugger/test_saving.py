"""Where pages go: streamed, spooled and moved, never into another epoch's folder."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import SequentialDebugger, load_debug_outputs
from endoscope.errors import ConfigError, FolderInUseError, PageError

from .conftest import Output, node


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_streamed_into_the_constructors_folder(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make()
    run(debugger, 0)
    debugger.reset_buffer()
    run(debugger, 1)
    assert debugger.flush()
    assert list(load_debug_outputs(tmp_path)) == [0, 1]


def test_spooled_until_saved(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    run(debugger, 0)
    debugger.flush()
    (spool,) = tmp_path.iterdir()
    assert list(load_debug_outputs(spool)) == [0]
    report = debugger.save_all(tmp_path / "epoch_4" / "debugger")
    assert (report.records, report.complete) == (1, True)
    assert not spool.exists()
    assert list(load_debug_outputs(tmp_path / "epoch_4")) == [0]


def test_each_epoch_in_its_own_folder(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path, page_size_mb=0.001)
    for epoch in (4, 9):
        debugger.reset_buffer()
        for i in range(40):  # pages fill long before the epoch ends
            run(debugger, 100 * epoch + i)
        debugger.save_all(tmp_path / f"epoch_{epoch}" / "debugger")
    for epoch in (4, 9):
        outputs: Any = load_debug_outputs(tmp_path / f"epoch_{epoch}")
        assert list(outputs) == [100 * epoch + i for i in range(40)]
        assert len(outputs.pages) > 1
        assert outputs.verify() == []


def test_the_folder_of_reset_buffer_is_for_one_epoch(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    debugger.reset_buffer(tmp_path / "epoch_4" / "debugger")
    run(debugger, 4)
    debugger.save_all(tmp_path / "epoch_4" / "debugger")
    run(debugger, 9)  # nobody said where this belongs yet
    debugger.save_all(tmp_path / "epoch_9" / "debugger")
    assert list(load_debug_outputs(tmp_path / "epoch_4")) == [4]
    assert list(load_debug_outputs(tmp_path / "epoch_9")) == [9]


def test_what_was_never_saved_is_dropped_by_a_reset(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    run(debugger, 0)
    debugger.reset_buffer()
    run(debugger, 1)
    debugger.save_all(tmp_path / "out")
    assert list(load_debug_outputs(tmp_path / "out")) == [1]


def test_a_reset_keeps_the_constructors_folder(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make()
    debugger.reset_buffer(tmp_path / "other")
    run(debugger, 1)
    debugger.reset_buffer()
    run(debugger, 2)
    debugger.flush()
    assert list(load_debug_outputs(tmp_path / "other")) == [1]
    assert list(load_debug_outputs(tmp_path)) == [2]


def test_saved_twice_into_the_constructors_folder(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make()
    for i in range(3):
        run(debugger, i)
        debugger.save_all(tmp_path / "debugger")
    assert list(load_debug_outputs(tmp_path)) == [0, 1, 2]
    assert names(tmp_path / "debugger") == sorted(
        ["catalogue.jsonl", *(f"page_{n}.{s}" for n in range(3) for s in ("jsonl", "safetensors"))]
    )


def test_saved_elsewhere_than_streamed(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make()
    run(debugger, 0)
    debugger.save_all(tmp_path / "elsewhere")
    assert list(load_debug_outputs(tmp_path / "elsewhere")) == [0]
    assert names(tmp_path / "debugger") == []


def test_a_used_folder_is_refused_and_nothing_is_lost(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None)
    run(debugger, 0)
    debugger.save_all(tmp_path / "a")
    run(debugger, 1)
    with pytest.raises(FolderInUseError):
        debugger.save_all(tmp_path / "a")
    with pytest.raises(FolderInUseError):
        debugger.reset_buffer(tmp_path / "a")
    debugger.save_all(tmp_path / "b")  # the record is still there
    assert list(load_debug_outputs(tmp_path / "b")) == [1]
    run(debugger, 2)
    debugger.save_all(tmp_path / "a", overwrite=True)
    assert list(load_debug_outputs(tmp_path / "a")) == [2]


def test_moved_across_file_systems(make: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(a: Any, b: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    debugger = make(output_dir=None, spool_dir=tmp_path, page_size_mb=0.001)
    seen = [run(debugger, i)["first"]["output"] for i in range(20)]
    monkeypatch.setattr(os, "link", refuse)
    debugger.save_all(tmp_path / "out")
    outputs: Any = load_debug_outputs(tmp_path / "out")
    assert all(torch.equal(outputs[i]["first"]["output"], seen[i]) for i in range(20))
    assert outputs.verify() == []
    assert names(tmp_path) == ["out"]
    assert not [n for n in names(tmp_path / "out") if n.endswith(".part")]


def test_a_move_that_fails_keeps_the_spool(
    make: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    run(debugger, 0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("shutil.copyfile", full)
    report = debugger.save_all(tmp_path / "out")
    assert "could not be moved" in str(report)
    assert not report.complete
    monkeypatch.undo()
    (spool,) = [p for p in tmp_path.iterdir() if p.name.startswith("endoscope_")]
    assert list(load_debug_outputs(spool)) == [0]


def test_page_size_counts_true_bytes(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(page_size_mb=0.25)
    for i in range(16):
        debugger.add_to_buffer({"x": torch.zeros(1, 16384)}, {"meta_info": {"idx": i}})  # 64 KiB each
    debugger.close()
    sizes = [p.stat().st_size for p in (tmp_path / "debugger").glob("*.safetensors")]
    assert len(sizes) == 6  # three records a page: a fourth would pass 256 KiB with header and lines
    assert max(sizes) <= 256 * 1024


def test_closed_means_closed(make: Any, run: Any) -> None:
    debugger = make()
    run(debugger, 0)
    debugger.close()
    debugger.close()
    assert run(debugger, 1) == {}
    with pytest.raises(ConfigError, match="this debugger is closed; make a new one"):
        debugger.enabled = True
    with pytest.raises(PageError, match="closed"):
        debugger.add_to_buffer({"x": 1}, {"meta_info": {"idx": 1}})


def test_as_a_context_manager(model: torch.nn.Module, run: Any, tmp_path: Path) -> None:
    with SequentialDebugger([node("o", Output, layer_name="0")], model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        run(debugger, 0)
    assert not debugger.enabled
    assert load_debug_outputs(tmp_path).pages[0].closed  # type: ignore[attr-defined]


def test_unsaved_records_are_not_lost_in_silence(make: Any, run: Any, tmp_path: Path, caplog: Any) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    run(debugger, 0)
    with caplog.at_level(logging.WARNING, "endoscope"):
        debugger.close()
    assert ["1 captured records were never saved" in r.getMessage() for r in caplog.records] == [True]
    assert names(tmp_path) == []


def test_pickle_pages(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(page_format="pickle", page_size_mb=0.001)
    seen = {i: run(debugger, i) for i in range(40)}
    batch = run(debugger, [40, 41])
    debugger.save_all(tmp_path / "debugger")
    assert {n.rpartition(".")[2] for n in names(tmp_path / "debugger")} == {"pkl"}
    assert len(names(tmp_path / "debugger")) > 1
    with pytest.raises(PermissionError, match=r"trust_pickle=True, or convert .* endoscope pages import"):
        load_debug_outputs(tmp_path)
    outputs = load_debug_outputs(tmp_path, trust_pickle=True)
    assert list(outputs) == list(range(42))
    assert all(torch.equal(outputs[i]["first"]["output"], seen[i]["first"]["output"]) for i in seen)
    assert torch.equal(outputs[41]["first"]["output"], batch["first"]["output"][1:])


def test_pickle_pages_are_flushed_and_converted(make: Any, run: Any, tmp_path: Path) -> None:
    from endoscope.pages.pickle_pages import convert

    debugger = make(page_format="pickle")
    run(debugger, 0)
    assert debugger.flush()
    assert list(load_debug_outputs(tmp_path, trust_pickle=True)) == [0]
    seen = run(debugger, 1)
    debugger.close()
    (tmp_path / "new").mkdir()
    assert convert(tmp_path / "debugger", tmp_path / "new") == 2
    assert torch.equal(load_debug_outputs(tmp_path / "new")[1]["first"]["output"], seen["first"]["output"])


def test_saving_twice_keeps_what_was_saved(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path, overwrite=True)
    run(debugger, 0)
    assert debugger.save_all(tmp_path / "a").records == 1
    assert debugger.save_all(tmp_path / "a").records == 0
    assert debugger.save_all(tmp_path / "a", overwrite=True).records == 0
    assert list(load_debug_outputs(tmp_path / "a")) == [0]


def test_a_failed_move_keeps_both_and_can_be_tried_again(
    make: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path, overwrite=True)
    run(debugger, 0)
    debugger.save_all(tmp_path / "a")
    run(debugger, 1)
    run(debugger, 2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("endoscope.pages.folders._link_or_copy", full)
        report = debugger.save_all(tmp_path / "a")
    assert report.records == 0
    assert "they stay in" in str(report.problem)
    assert list(load_debug_outputs(tmp_path / "a")) == [0]
    assert not [p for p in (tmp_path / "a").iterdir() if p.name.startswith(".")]
    run(debugger, 3)
    report = debugger.save_all(tmp_path / "a")
    assert (report.records, report.problem) == (3, None)
    assert list(load_debug_outputs(tmp_path / "a")) == [1, 2, 3]


def test_a_spool_that_could_not_be_moved_outlives_the_debugger(
    make: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spool").mkdir()
    debugger = make(output_dir=None, spool_dir=tmp_path / "spool")
    run(debugger, 5)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("endoscope.pages.folders._link_or_copy", full)
    debugger.save_all(tmp_path / "a")
    debugger.close()
    (spool,) = (tmp_path / "spool").iterdir()
    assert list(load_debug_outputs(spool)) == [5]


def test_saving_after_closing_is_refused(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(output_dir=None, spool_dir=tmp_path)
    run(debugger, 0)
    debugger.close()
    with pytest.raises(PageError, match=r"call save_all before close\(\)"):
        debugger.save_all(tmp_path / "a")


def test_a_spool_that_is_not_there_is_found_at_construction(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("nowhere", "file"):
        with pytest.raises(ConfigError, match="spool_dir=.* is not a folder that can be written"):
            make(output_dir=None, spool_dir=tmp_path / wrong)


def test_saving_nothing_into_a_folder_that_cannot_be_made(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="^output_dir: cannot make the folder"):
        make(output_dir=None).save_all(tmp_path / "file" / "debugger")
