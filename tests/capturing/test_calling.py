"""How inputs reach a model's forward."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

from endoscope.capturing.calling import call_model


class One(nn.Module):
    def forward(self, x: Any) -> Any:
        return ("one", x)


class Two(nn.Module):
    def forward(self, a: Any, b: Any = None) -> Any:
        return ("two", a, b)


class Many(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return ("many", args, kwargs)


class Keywords(nn.Module):
    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        return ("keywords", x, scale)


T = torch.zeros(2)


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (One(), T, ("one", T)),
        (Two(), T, ("two", T, None)),
        (One(), {"x": 1}, ("one", 1)),
        (One(), {"y": 1}, ("one", {"y": 1})),
        (One(), {"x": 1, "y": 2}, ("one", {"x": 1, "y": 2})),
        (One(), {}, ("one", {})),
        (One(), {0: 1}, ("one", {0: 1})),
        (One(), {"not a name": 1}, ("one", {"not a name": 1})),
        (Two(), {"a": 1, "b": 2}, ("two", 1, 2)),
        (Two(), {"b": 2}, ("two", {"b": 2}, None)),
        (Two(), UserDict(a=1, b=2), ("two", 1, 2)),
        (Many(), {"a": 1}, ("many", (), {"a": 1})),
        (One(), [1, 2], ("one", [1, 2])),
        (One(), (1,), ("one", (1,))),
        (Two(), [1, 2], ("two", 1, 2)),
        (Two(), (1,), ("two", 1, None)),
        (Many(), [1, 2], ("many", (1, 2), {})),
        (Keywords(), [1, 2], ("keywords", [1, 2], 1.0)),
        (Keywords(), {"x": 1, "scale": 3.0}, ("keywords", 1, 3.0)),
    ],
)
def test_inputs_as_the_model_takes_them(model: nn.Module, inputs: Any, expected: Any) -> None:
    assert call_model(model, inputs) == expected


class Wrapper(nn.Module):
    """As DDP: takes anything, and gives it on."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def test_a_wrapper_takes_what_its_module_takes() -> None:
    assert call_model(Wrapper(One()), [1, 2], signature_of=One()) == ("one", [1, 2])
    assert call_model(Wrapper(One()), {"y": 1}, signature_of=One()) == ("one", {"y": 1})


def test_a_type_error_of_the_model_itself_is_not_taken_for_a_misfit() -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            raise TypeError("the model's own")

    with pytest.raises(TypeError, match="the model's own"):
        call_model(Broken(), {"x": 1})
