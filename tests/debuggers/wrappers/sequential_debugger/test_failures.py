"""A debugger that fails: training goes on, the failure is recorded and shown, nothing passes in silence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import BaseDebugger, ForwardDebugger, load_debug_outputs
from endoscope.capturing.snapshot import Snapshot
from endoscope.errors import DebuggerError

from .conftest import Output, node


class Fragile(ForwardDebugger):
    """Fails on the calls listed in ``on``."""

    def __init__(self, layer_name: str, on: Any) -> None:
        super().__init__(layer_name)
        self.on = on
        self.calls_seen = -1

    def process_forward(self, module: Any, input: Any, output: Any) -> Any:
        self.calls_seen += 1
        if self.calls_seen in self.on:
            raise RuntimeError(f"call {self.calls_seen}")
        return {"ok": self.calls_seen}


class Hopeless(BaseDebugger):
    def __call__(self, datapoint: Any, model: Any) -> Any:
        raise ValueError("no")


def test_a_failure_is_recorded_and_the_rest_goes_on(make: Any, run: Any, tmp_path: Path, caplog: Any) -> None:
    debugger = make(
        node("fragile", Fragile, layer_name="0", on=[1]), node("sound", Output, layer_name="0"), node("post", Hopeless)
    )
    with caplog.at_level(logging.WARNING, "endoscope"):
        seen = [list(run(debugger, i)) for i in range(3)]
    assert seen == [["fragile", "sound"], ["sound"], ["fragile", "sound"]]
    debugger.flush()
    outputs: Any = load_debug_outputs(tmp_path)
    assert outputs.notes(1)["failures"] == {"fragile": "RuntimeError: call 1", "post": "ValueError: no"}
    assert outputs.notes(2)["failures"] == {"post": "ValueError: no"}
    told = [r.getMessage() for r in caplog.records]
    assert sum("'fragile' raised RuntimeError: call 1" in t for t in told) == 1
    assert sum("'post' raised" in t for t in told) == 1  # once, although it failed three times


def test_three_in_a_row_mute(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(node("post", Hopeless), node("fragile", Fragile, layer_name="0", on=range(100)))
    for i in range(5):
        run(debugger, i)
    assert debugger.debuggers["fragile"].calls_seen == 2  # called three times, then no more
    report = debugger.save_all(tmp_path / "debugger")
    assert report.failures["post"].count == 3
    assert report.failures["post"].muted
    assert "debugger 'post' failed 3 times, then muted; last: ValueError: no" in str(report)
    assert not report.complete
    outputs: Any = load_debug_outputs(tmp_path)
    assert outputs.notes(4)["absent"]["post"] == "muted after 3 failures in a row, the last: ValueError: no"


def test_a_success_between_failures_does_not_mute(make: Any, run: Any) -> None:
    debugger = make(node("fragile", Fragile, layer_name="0", on=[0, 1, 3, 4, 6]))
    seen = [list(run(debugger, i)) for i in range(8)]
    assert [bool(s) for s in seen] == [False, False, True, False, False, True, False, True]


@pytest.mark.parametrize("config", [node("bad", Fragile, layer_name="0", on=[0]), node("bad", Hopeless)])
def test_raise_for_those_who_want_it(make: Any, run: Any, config: Any) -> None:
    with pytest.raises(DebuggerError, match="debugger 'bad' raised") as caught:
        run(make(config, on_error="raise"), 0)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(make: Any, run: Any, interrupt: type[BaseException]) -> None:
    class Interrupted(ForwardDebugger):
        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            raise interrupt

    with pytest.raises(interrupt):
        run(make(node("i", Interrupted, layer_name="0")), 0)


def test_a_value_that_cannot_be_stored_is_a_failure_of_its_own(make: Any, run: Any, tmp_path: Path) -> None:
    class Cyclic(BaseDebugger):
        def __call__(self, datapoint: Any, model: Any) -> Any:
            loop: list[Any] = []
            loop.append(loop)
            return loop

    debugger = make(node("cyclic", Cyclic), node("sound", Output, layer_name="0"))
    run(debugger, [0, 1])
    debugger.flush()
    outputs: Any = load_debug_outputs(tmp_path)
    assert outputs.list(0) == ["sound"]
    failures = outputs.notes(0)["failures"]
    assert "nested deeper than" in failures["cyclic"]


def test_a_failing_debugger_records_no_gradient_and_leaves_grad_mode(make: Any, model: Any) -> None:
    debugger = make(node("bad", Fragile, layer_name="0", on=[0]))
    out = model(torch.ones(1, 4))
    assert torch.is_grad_enabled()
    assert out.requires_grad
    assert debugger.enabled


def test_values_of_ones_own_that_fail_now_and_then_mute_nothing(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(node("mine", Output, layer_name="0"))
    endless: list[Any] = []
    endless.append(endless)
    for i in range(6):
        debugger.add_to_buffer({"mine": endless if i % 2 else 1.0}, {"meta_info": {"idx": i}})
    assert list(run(debugger, 6)) == ["mine"]
    report = debugger.save_all(tmp_path / "debugger")
    assert report.failures["mine"].count == 3
    assert not report.failures["mine"].muted


def test_no_memory_for_what_is_returned_does_not_stop_the_loop(
    make: Any, run: Any, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA the returned copies are on the device, which the model may fill up."""

    def exhausted(self: Snapshot) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    debugger = make(node("o", Output, layer_name="0"))
    monkeypatch.setattr(Snapshot, "copy", exhausted)
    assert [run(debugger, i) for i in range(2)] == [{}, {}]
    assert sum("not returned: CUDA out of memory" in r.getMessage() for r in caplog.records) == 1
    debugger.flush()
    assert load_debug_outputs(tmp_path)[1]["o"]["output"].shape == (1, 8)


class Nested(ForwardDebugger):
    def process_forward(self, module: Any, input: Any, output: Any) -> Any:
        return {"rows": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_value_that_cannot_be_stored_is_logged_once_and_reported(
    make: Any, run: Any, tmp_path: Path, caplog: Any
) -> None:
    debugger = make(node("nested", Nested, layer_name="0"), node("sound", Output, layer_name="0"))
    with caplog.at_level(logging.WARNING, "endoscope"):
        for i in range(3):
            run(debugger, i)
        report = debugger.save_all(tmp_path / "debugger")
    assert not report.complete
    assert report.failures.keys() == {"nested"} and report.failures["nested"].count == 3
    assert "debugger 'nested' failed 3 times; last: its value could not be stored" in str(report)
    assert sum("a value of debugger 'nested' could not be stored" in r.getMessage() for r in caplog.records) == 1
    outputs: Any = load_debug_outputs(tmp_path)
    assert "to_padded_tensor" in outputs.notes(2)["failures"]["nested"]
    assert [*outputs[2]] == ["sound"]
