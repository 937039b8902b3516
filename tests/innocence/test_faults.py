"""A fault in a debugger never stops the loop and never passes silently, whatever it returns or raises."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes import Gradient, Output, node
from torch import nn

from endoscope import BaseDebugger, SequentialDebugger, load_debug_outputs, per_datapoint, whole_batch
from endoscope.errors import DebuggerError

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Colour(enum.Enum):
    RED = torch.zeros(2)


@dataclasses.dataclass
class Half:
    missing: int = dataclasses.field(init=False)


class Raises(collections.UserDict[str, int]):
    def __iter__(self) -> Any:
        raise KeyError("iter")


RETURNED: dict[str, Any] = {
    "none": lambda: None,
    "cyclic": cyclic,
    "deep": lambda: __import__("functools").reduce(lambda v, _: [v], range(500), 0),
    "object": object,
    "broken repr": Nasty,
    "lock": threading.Lock,
    "generator": lambda: (i for i in range(3)),
    "a class": lambda: Nasty,
    "function": lambda: len,
    "module": lambda: nn.Linear(1, 1),
    "enum of a tensor": lambda: Colour.RED,
    "half a dataclass": Half,
    "raising mapping": lambda: Raises(a=1),
    "keys that are no text": lambda: {1: 2, (3, 4): 5, None: 6, torch.float32: 7, b"b": 8, 1.5: 9},
    "equal keys as text": lambda: {1: "int", "1": "text"},
    "surrogates": lambda: {"text": "\ud800", "\udfff": 1},
    "control characters": lambda: {"text": "\x00\n\u2028"},
    "huge int": lambda: 1 << 5000,
    "not finite": lambda: {"a": math.nan, "b": math.inf, "c": complex(math.nan, 1)},
    "object array": lambda: np.array([object(), None, "x"], dtype=object),
    "text array": lambda: np.array(["a", "bc"]),
    "date array": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "record array": lambda: np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    "half array": lambda: np.zeros((2, 2), np.float16)[:, ::-1],
    "big endian": lambda: np.arange(3, dtype=">f4"),
    "long double": lambda: np.zeros(2, np.longdouble),
    "meta": lambda: torch.empty(2, 2, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "sparse csc": lambda: torch.eye(4).to_sparse_csc(),
    "sparse bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.zeros(2), 0, torch.qint8
    ),
    "complex half": lambda: torch.zeros(2, dtype=torch.complex32),
    "float8": lambda: torch.zeros(2, 2).to(torch.float8_e4m3fn),
    "unsigned": lambda: torch.zeros(2, dtype=torch.uint16),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "large nested": lambda: torch.nested.nested_tensor([torch.ones(40000), torch.ones(3)]),
    "expanded": lambda: torch.ones(1).expand(1000, 1000)[:, :3],
    "empty": lambda: [torch.empty(0), torch.empty(0, 3), {}, [], (), np.empty((0, 2))],
    "uneven per datapoint": lambda: per_datapoint([1, 2, 3]),
    "nested marks": lambda: whole_batch(per_datapoint([whole_batch(1), 2])),
    "set of tensors": lambda: {torch.zeros(1), torch.ones(1)},
    "needs a gradient": lambda: torch.ones(2, requires_grad=True) * 2,
}  # fmt: skip


class Returns(BaseDebugger):
    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        return RETURNED[self.what]()


def run(nodes: list[dict[str, Any]], folder: Path, *, steps: int = 1, **options: Any) -> SequentialDebugger:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    debugger = SequentialDebugger(nodes, model, output_dir=folder, **options)
    debugger.enabled = True
    for step in range(steps):
        model(X).sum().backward()
        debugger({"meta_info": {"idx": [2 * step, 2 * step + 1]}}, model)
    debugger.close()
    return debugger


@pytest.mark.filterwarnings("ignore")  # prototypes and deprecations of torch's own
@pytest.mark.parametrize("what", RETURNED)
def test_whatever_is_returned_the_loop_goes_on(what: str, folder: Path) -> None:
    """It is stored, or the record says that and why it is not; the other debuggers' outputs are there."""
    run([node("odd", Returns, what=what), node("good", Output, layer_name="0")], folder, steps=2)
    seen = load_debug_outputs(folder)
    assert len(seen) == 4
    for idx in seen:
        record, notes = seen[idx], seen.notes(idx)
        assert "good" in record
        told = [kind for kind in ("absent", "failures") if "odd" in notes.get(kind, {})]
        assert ("odd" in record) + len(told) == 1
    assert not seen.damage
    assert not seen.verify()


class Odd(nn.Module):
    """A layer whose output cannot be walked to its end."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        if self.kind == "cyclic":
            return (loop := [y]).append(loop) or loop
        if self.kind == "half a dataclass":
            return [y, Half()]
        return [y, Raises(a=1)]


@pytest.mark.parametrize("kind", ["cyclic", "half a dataclass", "raising mapping"])
@pytest.mark.parametrize("debugger", [Output, Gradient])
def test_an_output_that_cannot_be_walked(debugger: type, kind: str, folder: Path) -> None:
    """That is the model's own business: its forward and backward go on, and the record says what is absent."""
    model = nn.Sequential(Odd(kind))
    with SequentialDebugger([node("odd", debugger, layer_name="0")], model, output_dir=folder) as watching:
        watching.enabled = True
        model(X)[0].sum().backward()
        watching({"meta_info": {"idx": [0, 1]}}, model)
    notes = load_debug_outputs(folder).notes(0)
    assert "odd" in {**notes.get("absent", {}), **notes.get("failures", {})}


class Fails(Output):
    def __init__(self, layer_name: str, error: type[BaseException] = ValueError) -> None:
        super().__init__(layer_name)
        self.error = error

    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        raise self.error("on purpose")


class FailsInBackward(Gradient):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        raise ValueError("on purpose")


class FailsAfter(BaseDebugger):
    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        raise ValueError("on purpose")


FAILING = [
    node("forward", Fails, layer_name="0"),
    node("backward", FailsInBackward, layer_name="0"),
    node("after", FailsAfter),
]


def test_failures_are_recorded_logged_once_and_muted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = run([*FAILING, node("good", Output, layer_name="0")], folder, steps=5)
    seen = load_debug_outputs(folder)
    for step in range(5):
        notes = seen.notes(2 * step)
        kind = "failures" if step < 3 else "absent"
        assert notes[kind].keys() == {"forward", "backward", "after"}, step
        assert all("ValueError: on purpose" in text for text in notes[kind].values())
        assert seen.list(2 * step) == ["good"]
    for name in ("forward", "backward", "after"):
        told = [r.getMessage() for r in caplog.records if repr(name) in r.getMessage() and r.name == "endoscope"]
        assert len(told) == 2  # the first failure, and that it is muted
        assert "muted" in told[1]
    assert not debugger.enabled


@pytest.mark.parametrize("entry", FAILING, ids=lambda n: n["name"])
def test_raised_when_asked_for(entry: dict[str, Any], folder: Path) -> None:
    with pytest.raises(DebuggerError, match=r"debugger '.*' raised ValueError: on purpose"):
        run([entry], folder, on_error="raise")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes(error: type[BaseException], folder: Path) -> None:
    with pytest.raises(error):
        run([node("interrupted", Fails, layer_name="0", error=error)], folder)
