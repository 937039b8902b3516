"""BackwardDebugger: what it is by itself; how it sees gradients is tested with SequentialDebugger."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from endoscope import BackwardDebugger
from endoscope.errors import ConfigError


class Gradient(BackwardDebugger):
    def process_backward(self, module: torch.nn.Module, grad_output: Any) -> Any:
        return grad_output


def test_it_is_abstract() -> None:
    with pytest.raises(TypeError, match="process_backward"):
        BackwardDebugger("fc")  # type: ignore[abstract]


def test_alone_it_has_seen_nothing() -> None:
    debugger = Gradient("fc")
    assert (debugger.layer_name, debugger.calls) == ("fc", "last")
    assert debugger({}, torch.nn.Identity()) is None


def test_calls_is_a_choice() -> None:
    with pytest.raises(ConfigError, match="calls='first' is not a choice; choose 'last' or 'all'"):
        Gradient("fc", calls="first")  # type: ignore[arg-type]
