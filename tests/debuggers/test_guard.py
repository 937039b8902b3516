"""Which functions of debuggers are known to draw no random numbers, so that no state is kept round them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from endoscope import BackwardDebugger, ForwardDebugger, SequentialDebugger
from endoscope.debuggers import FeatureMapDebugger
from endoscope.debuggers.guard import may_draw


class Keeps(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": output, "input": input}


class Computes(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": torch.rand(2)}


class OfTheReadyMade(FeatureMapDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return super().process_forward(module, input, output + torch.rand(1))


class KeepsGradients(BackwardDebugger):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        kept = [grad_output, 1]
        return (kept, "text")


def _nothing(*args: Any) -> Any:
    return None


def _first(module: Any, input: Any, output: Any) -> Any:
    return {"output": output}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        torch.rand(1)
        return function(*args)

    return call


drawn = torch.rand


class LooksLikeAMethod:
    """Hands every question on to the method that it wraps, as some decorators do."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __call__(self, *args: Any) -> Any:
        return self._method(*args), torch.rand(1)


class DrawsOnCall:
    def __call__(self, *args: Any) -> Any:
        return torch.rand(1)


RUNS_NOTHING = {
    "keeps the output": Keeps("a").process_forward,
    "keeps gradients": KeepsGradients("a").process_backward,
    "returns nothing": _nothing,
    "a function": _first,
    "a lambda": lambda module, input, output: [output],
}
MAY_RUN_ANYTHING = {
    "a call": Computes("a").process_forward,
    "an attribute": lambda module, input, output: {"weight": module.weight},  # of a parametrised module
    "an item": lambda module, input, output: {"first": output[0]},
    "an operator": lambda module, input, output: {"sum": output + 1},
    "a comparison": lambda module, input, output: {"same": output == input},
    "a condition": lambda module, input, output: {"some": 1 if output else 2},
    "text": lambda module, input, output: {"text": f"{output}"},
    "unpacking": lambda module, input, output: {"all": [*output]},
    "unpacking a dict": lambda module, input, output: {**output},
    "a loop": lambda module, input, output: [x for x in output],  # noqa: C416
    "a set": lambda module, input, output: {output},
    "a generator": lambda module, input, output: (yield output),
    "a name from outside": lambda module, input, output: drawn,  # harmless, and not looked into
    "a decorated function": wrapped(_first),
    "an object": DrawsOnCall(),
    "a builtin": torch.rand,
    "what looks like a method": LooksLikeAMethod(Keeps("a").process_forward),
}


@pytest.mark.parametrize("what", RUNS_NOTHING)
def test_a_function_that_only_hands_on_what_it_is_given_draws_nothing(what: str) -> None:
    assert not may_draw(Keeps("a"), RUNS_NOTHING[what])


@pytest.mark.parametrize("what", MAY_RUN_ANYTHING)
def test_any_other_may(what: str) -> None:
    assert may_draw(Keeps("a"), MAY_RUN_ANYTHING[what])


@pytest.mark.parametrize("kind", [Keeps, KeepsGradients])
def test_a_function_exchanged_meanwhile_leaves_the_users_numbers(kind: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = SequentialDebugger([{"name": "x", "debugger_config": kind("0")}], model, output_dir=tmp_path)
    debugger.enabled = True
    name = "process_forward" if kind is Keeps else "process_backward"
    setattr(debugger.debuggers["x"], name, lambda *args: {"drawn": torch.rand(2)})
    before = torch.get_rng_state()
    model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    debugger.close()


def test_the_ready_made_draw_nothing_but_a_users_subclass_may() -> None:
    ready, theirs = FeatureMapDebugger("a"), OfTheReadyMade("a")
    assert not may_draw(ready, ready.hooked)
    assert may_draw(theirs, theirs.hooked)
    ready.process_forward = Computes("a").process_forward  # type: ignore[method-assign]
    assert may_draw(ready, ready.hooked)
