"""A model, its debuggers, and datapoints that anybody can compute again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from endoscope import BackwardDebugger, BaseDebugger, ForwardDebugger, SequentialDebugger


class Output(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"input": input, "output": output}


class Gradient(BackwardDebugger):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        return {"gradient": grad_output}


class Prediction(BaseDebugger):
    """What the datapoint holds, and what the model says when it is asked again."""

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        return {"outputs": datapoint["outputs"], "again": model(datapoint["inputs"])}


def node(name: str, cls: type, **args: Any) -> dict[str, Any]:
    return {"name": name, "debugger_config": {"class": cls, "args": args}}


NODES = [
    node("output", Output, layer_name="*", calls="all"),
    node("gradient", Gradient, layer_name="*"),
    node("prediction", Prediction),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), shared, nn.Tanh(), shared, nn.Linear(8, 3))


def inputs(idx: int) -> Tensor:
    return torch.randn(1, 4, generator=torch.Generator().manual_seed(idx))


def look(model: nn.Module, debugger: SequentialDebugger, idx: int) -> dict[str, Any]:
    """One datapoint; gradients are computed for the inputs only, so that threads share nothing that is written."""
    x = inputs(idx).requires_grad_()
    outputs = model(x)
    torch.autograd.grad(outputs.square().sum(), x)
    return debugger({"inputs": x.detach(), "outputs": outputs, "meta_info": {"idx": idx}}, model)


def watching(
    model: nn.Module, folder: Path | None, nodes: Sequence[dict[str, Any]] = NODES, **options: Any
) -> SequentialDebugger:
    debugger = SequentialDebugger(nodes, model, output_dir=folder, **options)
    debugger.enabled = True
    return debugger


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "debugger"


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Small tensors: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
