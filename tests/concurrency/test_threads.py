"""Several threads call one model with one debugger: every record holds its own thread's data."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import SequentialDebugger
from endoscope.explain import GradCAM

from .conftest import Output, inputs, look, net, node, watching

THREADS, EACH = 4, 30


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads change places ten times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-4)
    yield
    sys.setswitchinterval(before)


def in_threads(run: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """``run(0)``, ``run(1)``, ... all at once; raises what any of them raised."""
    together = threading.Barrier(count)

    def wait(k: int) -> Any:
        together.wait(10)
        return run(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait, range(count)))


def test_each_record_is_its_own_threads(folder: Path, tmp_path: Path) -> None:
    model = net()
    debugger = watching(model, folder)

    def run(thread: int) -> list[tuple[int, Any]]:
        return [(k, canonical(look(model, debugger, k))) for k in range(thread * EACH, (thread + 1) * EACH)]

    seen = dict(pair for pairs in in_threads(run) for pair in pairs)
    debugger.close()

    alone = watching(model, tmp_path / "alone")
    for k in range(THREADS * EACH):
        look(model, alone, k)
    alone.close()
    found, expected = opened(folder), opened(tmp_path / "alone")
    assert list(found) == list(range(THREADS * EACH))
    for k in found:
        assert canonical(found[k]) == canonical(expected[k]), k
        assert found.notes(k) == expected.notes(k)
        assert seen[k] == canonical(found[k])
    assert not found.verify()


def test_the_threads_do_meet(folder: Path) -> None:
    """The twin: a debugger that keeps its captures in one place mixes up the threads."""
    model = net()
    naive = Output("2")
    model[2].register_forward_hook(naive.forward_hook_fn)

    def run(thread: int) -> int:
        wrong = 0
        for k in range(200):
            x = torch.full((1, 4), float(thread * 1000 + k))
            expected = model(x)
            assert expected is not None
            wrong += not torch.equal(naive.last_capture["input"][0], model[1](model[0](x)))
        return wrong

    assert sum(in_threads(run)) > 0


def test_a_thread_that_did_not_call_the_model_sees_nothing(folder: Path) -> None:
    model = net()
    debugger = watching(model, folder)
    look(model, debugger, 0)
    model(torch.ones(1, 4))
    seen = in_threads(lambda k: debugger({"inputs": torch.ones(1, 4), "outputs": None, "meta_info": {"idx": 1}}), 1)
    debugger.close()
    assert [*seen[0]] == ["prediction"]
    assert "on this thread" in opened(folder).notes(1)["absent"]["output/0"]


def test_what_a_thread_saw_before_the_hooks_were_removed_is_not_handed_out(folder: Path) -> None:
    model = net()
    debugger = watching(model, folder)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(model, inputs(0)).result()
        debugger.enabled = False
        debugger.enabled = True
        seen = thread.submit(debugger, {"inputs": inputs(0), "outputs": None, "meta_info": {"idx": 1}}).result()
    debugger.close()
    assert [*seen] == ["prediction"]


def test_saving_while_others_capture_loses_nothing(tmp_path: Path) -> None:
    model = net()
    debugger = SequentialDebugger([node("output", Output, layer_name="0")], model, spool_dir=tmp_path)
    debugger.enabled = True
    saved: list[Path] = []

    def run(thread: int) -> None:
        if thread == 0:
            for k in range(8):
                saved.append(debugger.save_all(tmp_path / f"part {k}").folder)
        else:
            for k in range(EACH):
                look(model, debugger, thread * 1000 + k)

    in_threads(run)
    saved.append(debugger.save_all(tmp_path / "rest").folder)
    debugger.close()
    parts = [opened(folder) for folder in saved if any(folder.iterdir())]
    found = sorted(idx for part in parts for idx in part)
    assert found == [t * 1000 + k for t in range(1, THREADS) for k in range(EACH)]
    assert not any(part.verify() for part in parts)


def test_switching_while_others_run(folder: Path) -> None:
    """A record is whole or says what is absent; nobody's forward fails."""
    model = net()
    debugger = watching(model, folder)

    def run(thread: int) -> None:
        for k in range(EACH):
            if thread == 0:
                debugger.enabled = bool(k % 2)
            else:
                look(model, debugger, thread * 1000 + k)

    in_threads(run)
    debugger.close()
    found = opened(folder)
    for k in found:
        notes = found.notes(k)
        assert {*found.list(k), *notes.get("absent", {}), *notes.get("failures", {})} == {*debugger.debuggers}


class Slow(nn.Module):
    """On the first of two threads a forward without gradient history, which is Grad-CAM's, waits in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.waiting = threading.local()
        self.entered, self.leave = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if getattr(self.waiting, "here", False):
            self.entered.set()
            assert self.leave.wait(10)
        return x.mean((2, 3))


def test_a_forward_beside_grad_cam_is_the_users_own(folder: Path) -> None:
    """It fires the user's hooks, writes the user's buffers, and none of Grad-CAM's."""
    torch.manual_seed(0)
    model = Slow()
    fired: list[nn.Module] = []
    model.norm.register_forward_hook(lambda module, input, output: fired.append(module))
    cam = GradCAM(model, "norm")
    x = torch.randn(2, 1, 8, 8)
    tracked: list[Any] = []

    def run(thread: int) -> None:
        if thread == 0:
            model.waiting.here = True
            cam.generate_cam(x)
        else:
            assert model.entered.wait(10)
            outputs = model(x)
            tracked.append((outputs.requires_grad, int(model.norm.num_batches_tracked), len(fired)))
            model.leave.set()

    in_threads(run, 2)
    assert tracked == [(True, 1, 1)]
    assert (int(model.norm.num_batches_tracked), fired) == (1, [model.norm])


def disturbed(action: Callable[[int], Any]) -> bool:
    """Whether plain Python fails on other threads while ``action`` is done over and over on one."""
    sys.setswitchinterval(5e-6)  # `restless` puts it back
    over = threading.Event()

    def run(thread: int) -> None:
        if thread == 0:
            try:
                for k in range(20):
                    action(k)
            finally:
                over.set()
        while not over.is_set():
            assert len(tuple(k for k in range(100))) == 100

    try:
        in_threads(run)
    except SystemError:
        return True
    return False


def test_enabling_disturbs_no_other_thread(folder: Path) -> None:
    """In a process that has compiled something: a tuple that another thread is building must be seen by nobody."""
    import torch._dynamo  # noqa: F401

    debugger = SequentialDebugger([node("output", Output, layer_name="0")], net(), output_dir=folder)
    assert not disturbed(lambda k: setattr(debugger, "enabled", not k % 2))
    debugger.close()


def test_looking_at_every_object_disturbs() -> None:
    assert any(disturbed(lambda k: [type(o) for o in gc.get_objects()]) for _ in range(10))
