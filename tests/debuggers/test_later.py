"""What a debugger leaves for later: a copy in the hook, the rest on the writer thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened

from endoscope import ForwardDebugger, SequentialDebugger, load_debug_outputs
from endoscope.errors import DebuggerError
from endoscope.values import Later

MODEL = torch.nn.Sequential(torch.nn.Linear(2, 2))


class Sum(ForwardDebugger):
    """The sum of a layer's output, and the thread that computed it."""

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return self.made(output)

    def process_later(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return Later(output, self.made)

    def made(self, output: torch.Tensor) -> dict[str, Any]:
        return {"sum": output.sum().item(), "thread": threading.current_thread().name}


class Failing(Sum):
    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return self.made(output)

    def process_later(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return Later(output, self.made)

    def made(self, output: torch.Tensor) -> dict[str, Any]:
        raise ValueError("no sum today")


def debugger(kind: type[Sum], folder: Path | None = None, **settings: Any) -> SequentialDebugger:
    config = [
        {"name": "sum", "debugger_config": {"class": kind, "args": {"layer_name": "0"}}},
        {"name": "other", "debugger_config": {"class": Sum, "args": {"layer_name": "0"}}},
    ]
    made = SequentialDebugger(config, MODEL, output_dir=folder, **settings)
    made.enabled = True
    return made


def test_it_is_made_of_the_copy_on_the_writer_thread(tmp_path: Path) -> None:
    with debugger(Sum, tmp_path) as d, torch.no_grad():
        y = MODEL(torch.ones(1, 2))
        expected = y.sum().item()
        d({"meta_info": {"idx": 0}})
        y.zero_()
        assert d.flush()
    assert opened(tmp_path)[0]["sum"] == {"sum": expected, "thread": "endoscope-writer"}


def test_who_looks_first_does_not_wait_for_the_thread(tmp_path: Path) -> None:
    with debugger(Sum, tmp_path) as d, torch.no_grad():
        y = MODEL(torch.ones(1, 2))
        assert d({"meta_info": {"idx": 0}})["sum"]["sum"] == y.sum().item()
        assert d.flush()
    assert opened(tmp_path)[0]["sum"]["sum"] == y.sum().item()


def test_a_failure_is_recorded_told_once_and_mutes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with debugger(Failing, tmp_path) as d, torch.no_grad():
        for idx in range(5):
            MODEL(torch.ones(1, 2))
            seen = d({"meta_info": {"idx": idx}})
            assert d.flush()
            assert [*seen.copy()] == ["other"]
        report = d.save_all(tmp_path)
    found = opened(tmp_path)
    assert [found.notes(idx).get("failures") for idx in range(3)] == [{"sum": "ValueError: no sum today"}] * 3
    assert "muted after 3 failures in a row" in found.notes(3)["absent"]["sum"]
    assert all(set(found[idx]) == {"other"} for idx in range(5))
    assert report.failures["sum"].count == 3
    assert len([r for r in caplog.records if "raised ValueError" in r.getMessage()]) == 1


def test_a_failure_loses_nothing_of_the_others_in_pickle_pages(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    with debugger(Failing, tmp_path, page_format="pickle") as d, torch.no_grad():
        for idx in range(3):
            MODEL(torch.ones(1, 2))
            d({"meta_info": {"idx": idx}})
        assert d.save_all(tmp_path).lost == 0
    found = load_debug_outputs(tmp_path, trust_pickle=True)
    assert [set(found[idx]) for idx in range(3)] == [{"other"}] * 3


def test_it_is_raised_for_those_who_want_it() -> None:
    with debugger(Failing, on_error="raise") as d, torch.no_grad():
        MODEL(torch.ones(1, 2))
        with pytest.raises(DebuggerError, match="no sum today"):
            d({"meta_info": {"idx": 0}})


COUNTED = """
import os, sys, torch
from endoscope import SequentialDebugger
from endoscope.debuggers import FeatureMapDebugger
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Identity())
x = torch.randn(1, 1 << 20)
x.sum()  # torch has made the loop's threads
before = len(os.listdir("/proc/self/task"))
config = [{"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "0"}}}]
with SequentialDebugger(config, model, output_dir=sys.argv[1]) as debugger:
    debugger.enabled = True
    model(x)
    debugger({"meta_info": {"idx": 0}})
    debugger.flush()
    if sys.argv[2:]:
        import threading
        thread = threading.Thread(target=lambda: (x.sum(), threading.Event().wait(0.2)))
        thread.start()
        thread.join(0.1)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(("also", "threads"), [([], 1), (["a sum by torch on another thread"], 3)])
def test_the_writer_thread_brings_no_other_threads(tmp_path: Path, also: list[str], threads: int) -> None:
    command = [sys.executable, "-c", COUNTED, str(tmp_path), *also]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads
