"""BaseDebugger: one abstract call, and no constructor that a subclass must know of."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from endoscope import BaseDebugger
from endoscope.debuggers import __all__ as ready_made


def test_it_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseDebugger()  # type: ignore[abstract]


def test_a_subclass_needs_one_method_and_no_super() -> None:
    class Mine(BaseDebugger):
        def __init__(self, target_layer: str) -> None:
            self.target_layer = target_layer

        def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
            return {"layer": self.target_layer, "parameters": sum(p.numel() for p in model.parameters())}

    assert Mine("fc")({}, torch.nn.Linear(2, 1)) == {"layer": "fc", "parameters": 3}


def test_a_subclass_without_the_method_stays_abstract() -> None:
    class Forgetful(BaseDebugger):
        pass

    with pytest.raises(TypeError, match="__call__"):
        Forgetful()  # type: ignore[abstract]


def test_every_ready_made_debugger_is_one() -> None:
    import endoscope.debuggers

    classes = [getattr(endoscope.debuggers, name) for name in ready_made]
    assert len(classes) == 10
    assert all(issubclass(c, BaseDebugger) for c in classes)
