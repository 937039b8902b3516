"""A full or broken disk never reaches the user's loop, costs only the record it met, and is told once."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.captures import datapoint, debugger, opened
from tests.pages.deterministic import outputs, put
from tests.pages.faulty_disk import Fault, FaultyDisk
from tests.sameness import canonical
from tests.warm import Say, WarmProcess

from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SaveReport, SequentialDebugger
from endoscope.errors import PageError
from endoscope.pages import writer
from endoscope.pages.reader import load_debug_outputs
from endoscope.pages.verify import verify_folder

RECORDS = 8


class Output(ForwardDebugger):
    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return {"output": output}


MODEL = torch.nn.Linear(4, 64)
INPUTS = torch.randn(RECORDS, 1, 4)
EXPECTED = [MODEL(x) for x in INPUTS]


def loop(folder: Path, page_mb: float = 0.002, **settings: Any) -> tuple[bool, SaveReport]:
    """A user's loop: the model's outputs are what they are without a debugger, whatever the disk does."""
    config = [{"name": "seen", "debugger_config": {"class": Output, "args": {"layer_name": ""}}}]
    with SequentialDebugger(config, MODEL, page_mb, output_dir=folder, **settings) as d:
        d.enabled = True
        for idx, x in enumerate(INPUTS):
            y = MODEL(x)
            assert torch.equal(y, EXPECTED[idx])
            d({"inputs": x, "outputs": y, **datapoint(idx)})
        flushed = d.flush()
        d.enabled = False
        return flushed, d.save_all(folder)


def read_all(folder: Path, **how: Any) -> set[int]:
    """The datapoints that are there, each of them right."""
    got = load_debug_outputs(folder, **how)
    for idx in got:
        assert canonical(got[idx]["seen"]["output"]) == canonical(EXPECTED[idx])
    return set(got)


def calls_of_a_healthy_run(disk: FaultyDisk, folder: Path, **settings: Any) -> int:
    flushed, report = loop(folder, **settings)
    assert flushed
    assert report.complete
    total = len(disk.calls)
    disk.calls.clear()
    return total


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", get_args(Fault))
def test_every_call_can_fail(
    fault: Fault, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    total = calls_of_a_healthy_run(disk, tmp_path / "healthy")
    assert total > 30
    faults = []
    lost = 0
    for n in range(1, total + 1):
        folder = tmp_path / str(n)
        disk.calls.clear()
        disk.failed.clear()
        disk.mend()
        disk.fail(n, fault, lasting=lasting)
        warnings_logged.clear()
        flushed, report = loop(folder)
        disk.mend()
        about = f"call {n} ({disk.failed[:2]})"
        there = read_all(folder)
        lost += report.lost
        told = [w for w in warnings_logged if "cannot be written" in w]
        if report.lost != RECORDS - len(there):
            faults.append(f"{about}: {RECORDS - len(there)} are missing, {report.lost} were reported")
        if flushed and report.lost:
            faults.append(f"{about}: flush() said that all was well")
        if not lasting and report.lost > 1:
            faults.append(f"{about}: one fault cost {report.lost} records")
        if fault == "short" and (report.lost or told):
            faults.append(f"{about}: a short write is no fault; lost {report.lost}, {told}")
        if fault != "short" and len(told) != 1:
            faults.append(f"{about}: {len(told)} warnings {told}")
        if damage := [str(d) for d in verify_folder(folder) if "catalogue" not in d.file]:
            faults.append(f"{about}: {damage}")
    assert faults == []
    assert (lost > 5) == (fault != "short")  # the faults were real


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", ["full", "half"])
def test_records_that_are_written_together_are_not_lost_together(
    fault: Fault, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page takes all of them in one call: when it fails they are tried one by one."""
    monkeypatch.setattr(writer, "TOGETHER_SECONDS", 60.0)
    disk = FaultyDisk(tmp_path, monkeypatch)
    total = calls_of_a_healthy_run(disk, tmp_path / "healthy", page_mb=1)
    assert total < 2 * RECORDS  # two calls a record, were they written one by one
    lost = []
    for n in range(1, total + 1):
        disk.calls.clear()
        disk.mend()
        disk.fail(n, fault, lasting=lasting)
        flushed, report = loop(tmp_path / str(n), page_mb=1)
        disk.mend()
        there = read_all(tmp_path / str(n))
        lost.append(RECORDS - len(there))
        assert report.lost == lost[-1]
        assert flushed == (report.lost == 0)
        assert [str(d) for d in verify_folder(tmp_path / str(n)) if "catalogue" not in d.file] == []
    assert max(lost) == (RECORDS if lasting else 1)
    assert 0 in lost


@pytest.mark.parametrize("call", ["fsync", "pwrite"])
def test_a_page_that_could_not_be_finished_is_no_complete_save(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    """Records whose sync failed may be gone after a power cut: the report must say so."""
    disk = FaultyDisk(tmp_path, monkeypatch)
    total = calls_of_a_healthy_run(disk, tmp_path / "healthy")
    assert total
    loop(tmp_path / "counted")
    at = max(k for k, name in enumerate(disk.calls, 1) if name == call)
    disk.calls.clear()
    disk.fail(at, "broken")
    _, report = loop(tmp_path / "faulty")
    assert disk.failed == [call]
    assert read_all(tmp_path / "faulty") == set(range(RECORDS))
    assert not report.complete


def test_a_disk_that_is_mended_takes_later_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    with debugger(tmp_path / "pages", page_size_mb=0.006) as d:
        put(d, 0, 300)
        assert d.flush()
        disk.fail(len(disk.calls) + 1, "full", lasting=True)
        for idx in (1, 2):
            put(d, idx, 300)
        assert not d.flush()
        disk.mend()
        for idx in (3, 4):
            put(d, idx, 300)
        d.flush()
        report = d.save_all(tmp_path / "pages")
    assert (report.records, report.lost) == (3, 2)
    assert str(report).startswith("3 records in ")
    assert "2 lost because they could not be written" in str(report)
    got = opened(tmp_path / "pages")
    assert {i: canonical(got[i]) for i in got} == {i: canonical(outputs(i)) for i in (0, 3, 4)}


def test_pickle_pages_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    with debugger(tmp_path / "pages", page_format="pickle") as d:
        put(d, 0, 300)
        assert d.flush()
        disk.fail(len(disk.calls) + 1, "full", lasting=True)
        put(d, 1, 300)
        assert not d.flush()
        report = d.save_all(tmp_path / "pages")
    disk.mend()
    assert len([w for w in warnings_logged if "cannot be written" in w]) == 1
    assert set(load_debug_outputs(tmp_path / "pages", trust_pickle=True)) == {0}
    assert report.lost == 1


@pytest.mark.parametrize("call", ["open", "writev"])
def test_a_disk_that_is_full_from_the_start(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(1 if call == "open" else 3, "full", lasting=True)
    flushed, report = loop(tmp_path / "pages")
    disk.mend()
    assert (flushed, report.records, report.lost) == (False, 0, RECORDS)
    assert read_all(tmp_path / "pages") == set()
    assert verify_folder(tmp_path / "pages") == []
    assert warnings_logged[0].startswith(
        "capture cannot be written (OSError: [Errno 28] No space left on device); training goes on"
    )


# ---------------------------------------------------------------- moving from the spool
def test_a_move_that_fails_leaves_every_record_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are in the target, or they stay in the spool as the report says; never half here and half there."""
    faults = []
    for n in range(1, 40):
        spool, target = tmp_path / f"spool{n}", tmp_path / f"target{n}"
        spool.mkdir()
        with monkeypatch.context() as patch:
            d = debugger(None, page_size_mb=0.006, spool_dir=spool)
            for idx in range(RECORDS):
                put(d, idx, 300)
            d.flush()
            disk = FaultyDisk(target, patch)
            moved = count_moves(disk, patch, fail_at=n)
            report = d.save_all(target)
            d.close()
        if len(moved) < n:
            break
        whole = [folder for folder in (target, *spool.iterdir()) if readable(folder) == set(range(RECORDS))]
        if not whole:
            faults.append(f"move {n}: no folder holds all records; {report.problem}")
        elif report.problem and str(whole[0]) not in report.problem:
            faults.append(f"move {n}: the records are in {whole[0]}; {report.problem}")
        if not report.problem and target not in whole:
            faults.append(f"move {n}: reported as saved")
    assert n > 4
    assert faults == []


def count_moves(disk: FaultyDisk, patch: pytest.MonkeyPatch, *, fail_at: int) -> list[str]:
    """Every way of moving a file counts; the ``fail_at``-th meets a full disk, by renaming and by copying."""
    import shutil

    moved: list[str] = []

    def guarded(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if disk.folder in Path(args[1]).parents:
                moved.append(name)
                if len(moved) >= fail_at:
                    raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        return call

    for name in ("rename", "replace", "link"):
        patch.setattr(os, name, guarded(name, getattr(os, name)))
    patch.setattr(shutil, "copyfile", guarded("copyfile", shutil.copyfile))
    return moved


def readable(folder: Path) -> set[int]:
    found = set()
    with opened(folder) as got:
        for idx in got:
            try:
                assert canonical(got[idx]) == canonical(outputs(idx))
                found.add(idx)
            except PageError:
                continue
    return found


# ---------------------------------------------------------------- the kernel's own refusal
def write_into_small_files(say: Say, folder: str, limit: int) -> None:
    """Files may not grow beyond ``limit``: the kernel writes what fits and refuses the rest."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with debugger(Path(folder), page_size_mb=1) as d:
        for idx in range(200):
            put(d, idx, 600)
        flushed = d.flush()
        report = d.save_all(folder)
    say([flushed, report.records, report.lost])


@pytest.mark.parametrize("limit", [100, 5_000, 70_000, 200_000])
def test_the_kernel_refuses_to_write(limit: int, tmp_path: Path, warm: WarmProcess) -> None:
    outcome = warm.run("tests.pages.test_disk_faults:write_into_small_files", folder=str(tmp_path), limit=limit)
    assert outcome.status == 0, outcome.stderr
    [[flushed, written, lost]] = outcome.said
    assert not flushed
    assert written + lost == 200
    got = opened(tmp_path)
    assert len(got) == written
    assert all(canonical(got[idx]) == canonical(outputs(idx, 600)) for idx in got)
    assert [d for d in verify_folder(tmp_path) if "catalogue" not in d.file] == []
    assert limit < 50_000 or written
