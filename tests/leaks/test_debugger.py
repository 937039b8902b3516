"""Captures leave nothing behind, however they end: no hook, thread, descriptor, folder, tensor."""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Gradient, node
from torch import nn

from endoscope import SequentialDebugger, load_debug_outputs
from endoscope.debuggers import FeatureMapDebugger, GradCAMDebugger
from endoscope.pages.writer import PageWriter

from .conftest import NODES, Census, Net, X, hooks_on, step

End = Callable[[SequentialDebugger, nn.Module, Path], None]


def newest_writer_thread() -> threading.Thread:
    """Debuggers of other tests may not have been collected yet."""
    return [t for t in threading.enumerate() if t.name == "endoscope-writer"][-1]


def closed(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    debugger.close()
    debugger.close()


def saved(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    debugger.save_all(folder / "saved")
    debugger.enabled = False


def reset(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    debugger.reset_buffer(folder / "one")
    step(model, debugger, 0)
    debugger.reset_buffer()
    step(model, debugger, 0)
    debugger.close()


def dropped(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    """The caller forgets it."""


def dropped_in_a_cycle(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    debugger.trainer = [debugger]  # type: ignore[attr-defined]


def switched(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    for _ in range(3):
        debugger.enabled = False
        debugger.enabled = True
    debugger.close()


def interrupted(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    with contextlib.suppress(RuntimeError), debugger:
        model(torch.zeros(2, 5))


def no_step_after_the_forward(debugger: SequentialDebugger, model: nn.Module, folder: Path) -> None:
    """A capture that nobody asks for, with a graph that nobody uses."""
    model(X)
    debugger.close()


CYCLES: dict[End, int] = {closed: 50, saved: 50, dropped: 50, dropped_in_a_cycle: 6, reset: 12, switched: 12,
                          interrupted: 12, no_step_after_the_forward: 12}  # fmt: skip


def cycle(model: nn.Module, end: End, folder: Path, **options: Any) -> None:
    debugger = SequentialDebugger(NODES, model, **options)
    debugger.enabled = True
    for idx in range(2):
        step(model, debugger, idx)
    end(debugger, model, folder)


@pytest.mark.parametrize("streamed", [False, True], ids=["spooled", "streamed"])
@pytest.mark.parametrize("end", CYCLES, ids=lambda e: e.__name__)
def test_nothing_is_left(end: End, streamed: bool, model: nn.Module, ram: Path) -> None:
    def run(k: int) -> None:
        folder = ram / f"{k}"
        cycle(model, end, folder, output_dir=folder / "pages" if streamed else None)
        if end is dropped_in_a_cycle:
            gc.collect()
        shutil.rmtree(folder, ignore_errors=True)

    run(-1)  # what torch and Python take on first use
    before = Census.of(model)
    for k in range(CYCLES[end]):
        run(k)
    assert Census.of(model).beyond(before) == {}


def test_pickle_pages_leave_nothing(model: nn.Module, ram: Path) -> None:
    pytest.importorskip("joblib")
    cycle(model, saved, ram / "first", page_format="pickle")
    before = Census.of(model)
    for k in range(10):
        cycle(model, saved, ram / f"{k}", page_format="pickle")
    assert Census.of(model).beyond(before) == {}


def test_the_census_can_fail(model: nn.Module, ram: Path) -> None:
    cycle(model, closed, ram)
    before = Census.of(model)
    debugger = SequentialDebugger(NODES, model)
    debugger.enabled = True
    step(model, debugger, 0)
    debugger.flush()
    kept = debugger({"meta_info": {"idx": 7}}, model), model(X)
    during = Census.of(model)
    assert during.beyond(before).keys() == {"hooks", "threads", "descriptors", "folders", "tensors", "debuggers"}
    del kept
    debugger.close()


# ---------------------------------------------------------------- what the user drops or keeps
def test_a_dropped_debugger_removes_its_hooks_at_once(model: nn.Module) -> None:
    """No gc.collect(): the last reference is enough."""
    gc.collect()
    gc.disable()
    try:
        debugger = SequentialDebugger(NODES, model)
        debugger.enabled = True
        assert hooks_on(model) > 0
        del debugger
        assert hooks_on(model) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["closed", "disabled", "dropped"])
def test_the_model_can_be_collected(end: str) -> None:
    model = Net()
    alive = weakref.ref(model)
    debugger: SequentialDebugger | None = SequentialDebugger(NODES, model)
    assert debugger is not None
    debugger.enabled = True
    step(model, debugger, 0)
    if end == "closed":
        debugger.close()
    if end == "disabled":
        debugger.enabled = False
    debugger = None
    del model
    gc.collect()
    assert alive() is None


def test_a_model_that_is_held_cannot() -> None:
    model = Net()
    alive = weakref.ref(model)
    debugger = SequentialDebugger(NODES, model)
    del model
    gc.collect()
    assert alive() is not None
    debugger.close()


def kept_by(outputs: int, model: nn.Module, debugger: SequentialDebugger | None) -> int:
    """How many tensors live while the user keeps the outputs of so many steps, graphs and all."""
    before = Census.of(model).tensors
    kept = []
    for idx in range(outputs):
        kept.append(model(X))
        kept[-1].sum().backward(retain_graph=True)
        if debugger is not None:
            debugger({"meta_info": {"idx": idx}}, model)
    if debugger is not None:
        assert debugger.flush()  # what waits to be written is alive
    model.zero_grad(set_to_none=True)
    return Census.of(model).tensors - before


def test_outputs_that_the_user_keeps_hold_no_captures(model: nn.Module, ram: Path) -> None:
    """Losses kept with their graphs are an old habit; what was captured must not stay in memory with them."""
    debugger = SequentialDebugger(NODES, model, output_dir=ram / "pages")
    without = kept_by(20, model, None)
    debugger.enabled = True
    step(model, debugger, 99)
    assert kept_by(20, model, debugger) <= without + 2 * len(debugger.debuggers)
    debugger.close()


def test_a_graph_is_freed_without_the_collector(ram: Path) -> None:
    """Torch frees a graph with its last reference; hooks on a layer's outputs must not make it wait for gc."""

    def alive(*, watched: bool) -> int:
        model = Net()
        debugger = SequentialDebugger(NODES, model, output_dir=ram / f"{watched}")
        debugger.enabled = watched
        gc.collect()
        gc.disable()
        try:
            inputs: list[weakref.ref[torch.Tensor]] = []
            for _ in range(5):
                x = X.clone().requires_grad_()
                inputs.append(weakref.ref(x))
                model(x)  # no backward: an evaluation whose author forgot no_grad
                debugger({"meta_info": {"idx": 1}}, model)
            del x
            return sum(r() is not None for r in inputs)
        finally:
            gc.enable()
            debugger.close()

    assert alive(watched=False) == 0
    assert alive(watched=True) == 0


class Prompt(nn.Module):
    """A layer that gives a parameter itself: learned queries, positions, prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self) -> torch.Tensor:
        return self.weight


class Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt = Prompt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.prompt()


def test_no_hook_stays_on_a_parameter(ram: Path) -> None:
    """A tensor that outlives the step must not collect a hook at each one, nor keep them for ever."""
    model = Prompted()
    debugger = SequentialDebugger([node("gradient", Gradient, layer_name="prompt")], model, output_dir=ram / "pages")
    debugger.enabled = True
    for idx in range(5):
        step(model, debugger, idx)
        assert len(model.prompt.weight._backward_hooks or ()) <= 1
    debugger.close()
    assert not model.prompt.weight._backward_hooks


@pytest.mark.parametrize(
    "entry", [node("cam", GradCAMDebugger, target_layer="0"), node("map", FeatureMapDebugger, layer_name="0")]
)
def test_hundreds_of_images(entry: dict[str, Any], ram: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    debugger = SequentialDebugger([entry], model, output_dir=ram / "pages")
    debugger.enabled = True
    x = torch.randn(1, 1, 5, 5)

    def run(start: int, count: int) -> Census:
        for idx in range(start, start + count):
            with torch.no_grad():
                outputs = model(x)
            debugger({"inputs": x, "outputs": outputs, "meta_info": {"idx": idx}}, model)
        debugger.flush()
        return Census.of(model)

    before = run(0, 10)
    assert run(10, 500).beyond(before) == {}
    debugger.close()


class CollectsOnTheWriterThread(logging.Handler):
    """The collector runs on whichever thread allocates; here it is made to run on the debugger's own writer thread."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = threading.Event()
        self.done = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread().name == "endoscope-writer":
            self.dropped.wait(10)
            gc.collect()
            self.done.set()


def test_collected_on_its_own_writer_thread(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer in a reference cycle is dropped while its writer has work: nothing deadlocks, raises or stays."""
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    monkeypatch.setattr("threading.excepthook", raised.append)
    handler = CollectsOnTheWriterThread()
    log = logging.getLogger("endoscope")
    log.addHandler(handler)
    try:
        before = threading.active_count()
        holder: list[Any] = [SequentialDebugger([], nn.Identity(), output_dir=ram / "pages")]
        holder.append(holder)
        shutil.rmtree(ram / "pages")  # the writer fails, and logs
        gc.disable()
        holder[0].add_to_buffer({"a": X}, {"meta_info": {"idx": 0}})
        thread = newest_writer_thread()
        del holder
        handler.dropped.set()
        assert handler.done.wait(10)
        thread.join(10)
        assert threading.active_count() == before
        assert raised == []
    finally:
        gc.enable()
        log.removeHandler(handler)


def test_collected_while_its_writer_thread_looks_into_the_queue(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, done = threading.Event(), threading.Event()
    next_batch = PageWriter._next_batch

    def collecting(self: PageWriter) -> Any:
        with self._lock:  # held while the queue is looked at, and there, too, the collector may run
            dropped.wait(10)
            gc.collect()
            done.set()
        return next_batch(self)

    monkeypatch.setattr(PageWriter, "_next_batch", collecting)
    holder: list[Any] = [SequentialDebugger([], nn.Identity(), output_dir=ram / "pages")]
    holder.append(holder)
    gc.disable()
    try:
        holder[0].add_to_buffer({"a": X}, {"meta_info": {"idx": 0}})
        thread = newest_writer_thread()
        del holder
        dropped.set()
        assert done.wait(10), "deadlock"
        thread.join(10)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert list(load_debug_outputs(ram / "pages")) == [0]
