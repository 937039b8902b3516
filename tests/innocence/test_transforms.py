"""What else a user does with a model (tracing, scripting, exporting, function transforms) works while it is watched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import ForwardDebugger, SequentialDebugger, load_debug_outputs
from endoscope.debuggers import FeatureMapDebugger

from .conftest import Gradient, Output, node

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def net(*, inplace: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 3))


@pytest.fixture
def watched(folder: Path) -> Iterator[Any]:
    made: list[SequentialDebugger] = []

    def watch(model: nn.Module) -> SequentialDebugger:
        nodes = [
            node("output", Output, layer_name="*"),
            node("features", FeatureMapDebugger, layer_name="*"),
            node("gradient", Gradient, layer_name="*"),
        ]
        made.append(SequentialDebugger(nodes, model, output_dir=folder))
        made[-1].enabled = True
        return made[-1]

    yield watch
    for debugger in made:
        debugger.close()


def in_torchscript(function: Any, *args: Any) -> tuple[Any, list[str]]:
    """What torch.jit made, and what it warned of besides its own deprecation."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = function(*args)
    return made, [str(w.message) for w in seen if not issubclass(w.category, DeprecationWarning)]


class Mean(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"mean": float(output.mean())}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + 1


def per_sample_gradients(model: nn.Module) -> dict[str, Tensor]:
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, X)


def test_function_transforms(watched: Any, folder: Path) -> None:
    """Computed rightly; what cannot be captured inside vmap is a failure that the record tells, not one of the loop."""
    expected = canonical(per_sample_gradients(net(inplace=False)))
    debugger = watched(model := net(inplace=False))
    assert canonical(per_sample_gradients(model)) == expected
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    debugger.close()
    record = load_debug_outputs(folder)
    told = {*record.list(0), *record.notes(0).get("failures", {}), *record.notes(0).get("absent", {})}
    assert told == {*debugger.debuggers}


def test_double_backward(watched: Any) -> None:
    def penalty(model: nn.Module) -> list[Any]:
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.square().sum() + model(x).sum()).backward()
        return canonical([p.grad for p in model.parameters()])

    expected = penalty(net())
    watched(model := net())
    assert penalty(model) == expected


def test_two_backwards_through_one_graph(watched: Any) -> None:
    def twice(model: nn.Module) -> list[Any]:
        outputs = model(X)
        outputs[0].sum().backward(retain_graph=True)
        outputs[1].sum().backward()
        return canonical([p.grad for p in model.parameters()])

    expected = twice(net())
    watched(model := net())
    assert twice(model) == expected


def test_anomaly_mode_stays_as_it_was(watched: Any) -> None:
    debugger = watched(model := net())
    model(X).sum().backward()
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert not torch.is_anomaly_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert torch.get_default_dtype() is torch.float32
