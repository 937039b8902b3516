"""A forked child inherits the debugger, but the files are its parent's: it never writes to them."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened
from tests.sameness import canonical
from tests.warm import Say, WarmProcess
from torch.utils.data import DataLoader, Dataset

from endoscope import SequentialDebugger

from .conftest import contents, look, net, watching

BEFORE, AFTER = 5, 3


def child(work: Callable[[], Any], *, exit_normally: bool = True) -> int:
    """Run ``work`` in a forked child, which ends as a program does; returns its exit status."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            work()
            if exit_normally:
                atexit._run_exitfuncs()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def uses(model: torch.nn.Module, debugger: SequentialDebugger, folder: Path) -> dict[str, Callable[[], Any]]:
    """What a child may do with the debugger that it inherited."""

    def scribble() -> None:
        with next(folder.glob("*.jsonl")).open("ab") as f:
            f.write(b"{}\n")

    return {
        "nothing": lambda: None,
        "datapoints": lambda: [look(model, debugger, 100 + k) for k in range(20)],
        "flush": lambda: (look(model, debugger, 100), debugger.flush()),
        "close": debugger.close,
        "reset": debugger.reset_buffer,
        "save_all": lambda: debugger.save_all(folder.parent / "elsewhere"),
        "add_to_buffer": lambda: debugger.add_to_buffer({"a": torch.ones(9)}, {"meta_info": {"idx": 100}}),
        "drop": lambda: debugger.__del__(),
        "disable": lambda: setattr(debugger, "enabled", False),
        "scribble": scribble,
    }


def forks(say: Say, folder: str, use: str, pending: bool) -> None:
    """Capture, fork, let the child use the debugger, and go on capturing."""
    model, path = net(), Path(folder)
    debugger = watching(model, path)
    for idx in range(BEFORE):
        look(model, debugger, idx)
    if not pending:  # else the child is made while the writer has work
        debugger.flush()
    before = contents(path)
    status = child(lambda: uses(model, debugger, path)[use]())
    if not pending:
        say(["untouched", contents(path) == before])
    for idx in range(BEFORE, BEFORE + AFTER):
        look(model, debugger, idx)
    debugger.close()
    say(["status", status])


USES = ["nothing", "datapoints", "flush", "close", "reset", "save_all", "add_to_buffer", "drop", "disable"]
RUNS = [(use, pending) for use in USES for pending in (False, True) if not pending or use in ("datapoints", "close")]


def check_whole(folder: Path, tmp_path: Path) -> None:
    """The parent's pages hold the parent's records, all of them, bit for bit."""
    model = net()
    alone = watching(model, tmp_path / "alone")
    for idx in range(BEFORE + AFTER):
        look(model, alone, idx)
    alone.close()
    found, expected = opened(folder), opened(tmp_path / "alone")
    assert list(found) == list(range(BEFORE + AFTER))
    assert all(canonical(found[k]) == canonical(expected[k]) for k in found)
    assert not found.verify()
    assert not found.damage


@pytest.mark.parametrize(("use", "pending"), RUNS)
def test_the_parents_pages_stay_as_they_are(
    use: str, pending: bool, folder: Path, tmp_path: Path, warm: WarmProcess
) -> None:
    done = warm.run("tests.concurrency.test_fork:forks", folder=str(folder), use=use, pending=pending)
    assert dict(done.said) == ({"status": 0} if pending else {"status": 0, "untouched": True}), done.stderr
    check_whole(folder, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} - {"elsewhere"} == {"debugger", "alone"}
    assert not (tmp_path / "elsewhere").exists()


def test_a_child_that_writes_is_noticed(folder: Path, tmp_path: Path, warm: WarmProcess) -> None:
    done = warm.run("tests.concurrency.test_fork:forks", folder=str(folder), use="scribble", pending=False)
    assert dict(done.said)["untouched"] is False
    with pytest.raises(AssertionError):
        check_whole(folder, tmp_path)


def told_once(say: Say, folder: str) -> None:
    model = net()
    debugger = watching(model, Path(folder))
    look(model, debugger, 0)

    def work() -> None:
        heard: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("endoscope").addHandler(handler)
        seen = [look(model, debugger, k) for k in range(3)]
        say([heard, [sorted(s) for s in seen]])

    child(work)
    debugger.close()


def test_the_child_is_told_and_still_sees(folder: Path, warm: WarmProcess) -> None:
    """What it captures is returned to it; that nothing is stored is logged once."""
    ((heard, seen),) = warm.run("tests.concurrency.test_fork:told_once", folder=str(folder)).said
    assert heard == ["this process only inherited the debugger (fork): nothing is stored from it"]
    assert all("output/0" in names and "prediction" in names for names in seen)


class Samples(Dataset[Any]):
    """Its workers call the model and the debugger themselves: a feature extractor in the data pipeline."""

    def __init__(self, model: torch.nn.Module, debugger: SequentialDebugger) -> None:
        self.model = model
        self.debugger = debugger

    def __len__(self) -> int:
        return BEFORE + AFTER

    def __getitem__(self, idx: int) -> tuple[int, int]:
        look(self.model, self.debugger, 1000 + idx)
        return idx, os.getpid()


def loads(say: Say, folder: str, spool: str | None) -> None:
    model = net()
    debugger = SequentialDebugger([], model) if spool else watching(model, Path(folder))
    if spool:
        from .conftest import NODES

        debugger = SequentialDebugger(NODES, model, spool_dir=spool)
        debugger.enabled = True
    look(model, debugger, 0)
    workers = set()
    for idx, pid in DataLoader(
        Samples(model, debugger), num_workers=2, batch_size=None, multiprocessing_context="fork"
    ):
        workers.add(pid)
        if idx:
            look(model, debugger, idx)
    if spool:
        debugger.save_all(folder)
    debugger.close()
    say([len(workers), os.getpid() in workers])


@pytest.mark.parametrize("spooled", [False, True])
def test_workers_of_a_data_loader(spooled: bool, folder: Path, tmp_path: Path, warm: WarmProcess) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    arguments = {"folder": str(folder), "spool": str(spool) if spooled else None}
    done = warm.run("tests.concurrency.test_fork:loads", **arguments)
    assert done.said == [[2, False]], done.stderr
    check_whole(folder, tmp_path)
    assert not any(spool.iterdir())


def reads(say: Say, folder: str) -> None:
    outputs = opened(Path(folder))
    outputs[0]

    def work() -> None:
        say(sum(float(outputs[k]["output/0"][0]["output"].sum()) for k in outputs))
        outputs.close()

    child(work)
    work()


def test_a_reader_is_shared(folder: Path, warm: WarmProcess) -> None:
    model = net()
    debugger = watching(model, folder)
    for idx in range(4):
        look(model, debugger, idx)
    debugger.close()
    said = warm.run("tests.concurrency.test_fork:reads", folder=str(folder)).said
    assert len(said) == 2
    assert said[0] == said[1]
