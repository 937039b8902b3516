"""A small model, a few debuggers, and the datapoints that the tests of SequentialDebugger run through them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import BaseDebugger, ForwardDebugger, SequentialDebugger


class Output(ForwardDebugger):
    """The layer's output, nothing computed."""

    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return {"output": output}


class Prediction(BaseDebugger):
    """The model's output, from the datapoint."""

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        return {"prediction": datapoint["outputs"]}


def node(name: str, cls: type, **args: Any) -> dict[str, Any]:
    return {"name": name, "debugger_config": {"class": cls, "args": args}}


def datapoint(idx: Any, x: torch.Tensor, outputs: Any) -> dict[str, Any]:
    return {"inputs": x, "labels": None, "outputs": outputs, "meta_info": {"idx": idx}}


@pytest.fixture
def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 3)).eval()


@pytest.fixture
def make(model: torch.nn.Sequential, tmp_path: Path) -> Any:
    """Make an enabled debugger that is closed at the end of the test; it streams into tmp_path/debugger by default."""
    made: list[SequentialDebugger] = []

    def build(*nodes: dict[str, Any], **options: Any) -> SequentialDebugger:
        options.setdefault("output_dir", tmp_path / "debugger")
        debugger = SequentialDebugger([*nodes] or [node("first", Output, layer_name="0")], model, **options)
        debugger.enabled = True
        made.append(debugger)
        return debugger

    yield build
    for debugger in made:
        debugger.close()


@pytest.fixture
def run(model: torch.nn.Sequential) -> Callable[..., dict[str, Any]]:
    """Run one datapoint (or batch) through the model and the debugger."""

    def step(debugger: SequentialDebugger, idx: Any, x: torch.Tensor | None = None) -> dict[str, Any]:
        if x is None:
            count = len(idx) if isinstance(idx, (list, torch.Tensor)) and getattr(idx, "ndim", 1) else 1
            x = torch.arange(4.0 * count).reshape(count, 4)
        with torch.no_grad():
            out = model(x)
        return debugger(datapoint(idx, x, out), model)

    return step
