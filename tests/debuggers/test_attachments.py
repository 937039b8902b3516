"""What a debugger's class declares, and which signatures are accepted."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.probes import Gradient, Output
from torch import nn

from endoscope import BackwardDebugger, BaseDebugger, ForwardDebugger, SequentialDebugger, load_debug_outputs
from endoscope import debuggers as ready_made
from endoscope.debuggers import FeatureMapDebugger, GradCAMDebugger
from endoscope.errors import ConfigError


def run(debugger: BaseDebugger, folder: Path, *, steps: int = 1) -> Any:
    """The stored outputs of a debugger on an identity layer whose output is -1."""
    model = nn.Sequential(nn.Identity())
    with SequentialDebugger([{"name": "x", "debugger_config": debugger}], model, output_dir=folder) as watching:
        watching.enabled = True
        for idx in range(steps):
            x = torch.full((1, 2), -1.0, requires_grad=True)
            model(x * 1).sum().backward()
            watching({"inputs": x, "meta_info": {"idx": idx}}, model)
    return load_debug_outputs(folder)


# ---------------------------------------------------------------- keeps_output
class Refuses(FeatureMapDebugger):
    """Declares again what it stores, with a method that must not be called then."""

    keeps_output = "map"

    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        raise AssertionError("called")


class Overrides(FeatureMapDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"doubled": output * 2}


class Inherits(FeatureMapDebugger):
    """Overrides nothing that matters."""


def test_a_declared_output_is_stored_without_a_call(tmp_path: Path) -> None:
    stored = run(Refuses("0"), tmp_path)[0]["x"]
    assert [*stored] == ["map", "stats", "layer_name"]
    assert stored["map"].tolist() == [[-1.0, -1.0]]
    assert stored["stats"]["mean"] == -1.0


def test_a_subclass_inherits_it_with_the_method(tmp_path: Path) -> None:
    assert run(Inherits("0"), tmp_path)[0]["x"]["feature_map"].tolist() == [[-1.0, -1.0]]


def test_a_subclass_that_overrides_the_method_does_not(tmp_path: Path) -> None:
    assert run(Overrides("0"), tmp_path)[0]["x"].keys() == {"doubled"}


def test_nor_does_an_instance_whose_method_was_replaced(tmp_path: Path) -> None:
    debugger = FeatureMapDebugger("0")
    debugger.process_forward = lambda module, input, output: {"mine": output}  # type: ignore[method-assign]
    assert run(debugger, tmp_path)[0]["x"].keys() == {"mine"}


def test_of_all_calls_every_one_has_its_statistics(tmp_path: Path) -> None:
    layer = nn.Identity()
    model = nn.Sequential(layer, layer)
    entry = {"name": "x", "debugger_config": FeatureMapDebugger("0", calls="all")}
    with SequentialDebugger([entry], model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        model(torch.ones(1, 2))
        seen = debugger({"meta_info": {"idx": 0}}, model)
    assert [one["stats"]["max"] for one in seen["x"]] == [1.0, 1.0]
    assert "mean" in repr(seen["x"][0]["stats"])


# ---------------------------------------------------------------- uses_random
class Draws(Output):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"drawn": torch.rand(1)}


class DrawsInAReadyMade(FeatureMapDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return super().process_forward(module, input, output + torch.rand(1))


class DrawsInBackward(Gradient):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        return {"drawn": torch.rand(1)}


class DrawsAfterwards(GradCAMDebugger):
    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        return {"drawn": torch.rand(1)}


@pytest.mark.parametrize("debugger", [Draws("0"), DrawsInAReadyMade("0"), DrawsInBackward("0"), DrawsAfterwards("0")])
def test_draws_are_undone_also_in_subclasses_of_the_ready_made(debugger: BaseDebugger, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(debugger, tmp_path, steps=2)
    assert torch.equal(torch.get_rng_state(), before)


class SaysItDrawsNothing(Draws):
    uses_random = False

    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return super().process_forward(module, input, output)


def test_a_class_that_declares_to_draw_nothing_is_believed(tmp_path: Path) -> None:
    """The twin: the comparison above can fail."""
    before = torch.get_rng_state()
    run(SaysItDrawsNothing("0"), tmp_path)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_ready_made_declare_that_they_draw_nothing() -> None:
    bases = (ForwardDebugger, BackwardDebugger, BaseDebugger, SequentialDebugger)
    classes = [c for name in ready_made.__all__ if (c := getattr(ready_made, name)) not in bases]
    assert len(classes) >= 6
    assert all(vars(c)["uses_random"] is False for c in classes)


# ---------------------------------------------------------------- signatures
def forward(function: Any) -> type:
    return type("Mine", (ForwardDebugger,), {"process_forward": function})


def backward(function: Any) -> type:
    return type("Mine", (BackwardDebugger,), {"process_backward": function})


def after(function: Any) -> type:
    return type("Mine", (BaseDebugger,), {"__call__": function, "__init__": lambda self, name: None})


def attach(cls: type) -> None:
    node = {"name": "x", "debugger_config": {"class": cls, "args": {next(iter(_parameters(cls))): "0"}}}
    SequentialDebugger([node], nn.Sequential(nn.Identity()))


def _parameters(cls: type) -> list[str]:
    return ["layer_name"] if issubclass(cls, (ForwardDebugger, BackwardDebugger)) else ["name"]


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (forward(lambda self, output: 1), r"Mine.process_forward takes \(output\).*expected \(module, input, output\)"),
        (forward(lambda self, m, i, o, extra: 1), r"process_forward takes \(m, i, o, extra\)"),
        (forward(lambda self, m, i, o, *, extra: 1), "process_forward takes"),
        (backward(lambda self, m, i, o: 1), r"Mine.process_backward takes \(m, i, o\).*expected \(module, grad_output"),
        (after(lambda self, datapoint: 1), r"Mine.__call__ takes \(datapoint\).*expected \(datapoint, model\)"),
    ],
)
def test_a_wrong_number_of_parameters_is_a_config_error(cls: type, message: str) -> None:
    with pytest.raises(ConfigError, match=r"debuggers_config\[0\].debugger_config: .*" + message) as caught:
        attach(cls)
    assert len(str(caught.value).splitlines()) <= 3


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class _Called:
    def __call__(self, *args: Any) -> Any:
        return {}


@pytest.mark.parametrize(
    "cls",
    [
        forward(lambda self, *args: 1),
        forward(lambda self, *args, **kwargs: 1),
        forward(lambda self, module, input, output, scale=2: 1),
        forward(_decorated(lambda self, module, input, output: 1)),
        forward(Mock(return_value=1)),
        forward(_Called()),
        forward(dict),  # a builtin without a signature
        backward(lambda self, *args: 1),
        after(lambda self, datapoint, model, more=None: 1),
    ],
)
def test_whatever_can_be_called_is_accepted(cls: type) -> None:
    attach(cls)


def test_the_signature_of_an_instance_is_checked_too() -> None:
    entry = {"name": "x", "debugger_config": forward(lambda self: 1)("*")}
    with pytest.raises(ConfigError, match="process_forward takes"):
        SequentialDebugger([entry], nn.Sequential(nn.Identity()))
