"""ForwardDebugger by itself: a hook to register, and what it saw last."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from endoscope import ForwardDebugger


class Output(ForwardDebugger):
    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        return {"input": input[0], "output": output, "grad": torch.is_grad_enabled()}


@pytest.fixture
def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True))


def test_it_is_abstract() -> None:
    with pytest.raises(TypeError, match="process_forward"):
        ForwardDebugger("fc")  # type: ignore[abstract]


def test_nothing_was_seen_before_the_first_forward() -> None:
    debugger = Output("0")
    assert debugger.layer_name == "0"
    assert debugger.last_capture is None
    assert debugger({}, torch.nn.Identity()) is None


def test_the_hook_keeps_a_copy(model: torch.nn.Sequential) -> None:
    debugger = Output("0")
    handle = model[0].register_forward_hook(debugger.forward_hook_fn)
    x = torch.full((1, 3), -5.0)
    model(x)
    expected = model[0](x).detach()
    model(x)
    x.zero_()
    capture = debugger.last_capture
    assert torch.equal(capture["output"], expected)  # not what the in-place ReLU made of it
    assert torch.equal(capture["input"], torch.full((1, 3), -5.0))
    assert not capture["output"].requires_grad
    assert not capture["grad"]
    assert debugger({}, model) is capture
    handle.remove()


def test_the_hook_changes_nothing(model: torch.nn.Sequential) -> None:
    x = torch.randn(2, 3)
    before = model(x)
    handle = model[0].register_forward_hook(Output("0").forward_hook_fn)
    after = model(x)
    handle.remove()
    assert torch.equal(before, after)
    assert after.requires_grad
    assert torch.is_grad_enabled()


def test_an_error_of_its_own_is_the_callers_to_see(model: torch.nn.Sequential) -> None:
    class Broken(ForwardDebugger):
        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            raise ZeroDivisionError

    model[0].register_forward_hook(Broken("0").forward_hook_fn)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 3))


@pytest.mark.parametrize(
    "output",
    [
        (torch.ones(2), torch.zeros(1)),
        {"a": torch.ones(2), "b": [torch.zeros(1), None]},
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor(3),
        torch.empty(0, 4),
        "text",
        None,
    ],
)
def test_any_output_can_be_captured(output: Any) -> None:
    class Returns(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return output

    class Raw(ForwardDebugger):
        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            return output

    layer, debugger = Returns(), Raw("x")
    layer.register_forward_hook(debugger.forward_hook_fn)
    layer(torch.ones(1))
    assert str(debugger.last_capture) == str(output)
