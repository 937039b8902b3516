"""See inside a PyTorch model while it trains, and find out why it fails.

>>> import torch
>>> from endoscope import ForwardDebugger, get_layer_by_name
>>> class Mean(ForwardDebugger):
...     def process_forward(self, module, input, output):
...         return {"mean": output.mean()}
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
>>> get_layer_by_name(model, "1")
ReLU()

The public names are imported on first use: ``import endoscope`` is fast and changes nothing global.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endoscope.capturing.seen import capture
    from endoscope.config import build_from_config
    from endoscope.debuggers.backward_debugger import BackwardDebugger
    from endoscope.debuggers.base_debugger import BaseDebugger
    from endoscope.debuggers.forward_debugger import ForwardDebugger
    from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
    from endoscope.errors import EndoscopeError
    from endoscope.layers import get_layer_by_name
    from endoscope.pages.reader import load_debug_outputs
    from endoscope.values import per_datapoint, whole_batch

__version__ = "0.1.0"

__all__ = [
    "BackwardDebugger",
    "BaseDebugger",
    "EndoscopeError",
    "ForwardDebugger",
    "SequentialDebugger",
    "__version__",
    "build_from_config",
    "capture",
    "get_layer_by_name",
    "load_debug_outputs",
    "per_datapoint",
    "whole_batch",
]

_MODULE_OF = {
    "BackwardDebugger": "endoscope.debuggers.backward_debugger",
    "BaseDebugger": "endoscope.debuggers.base_debugger",
    "EndoscopeError": "endoscope.errors",
    "ForwardDebugger": "endoscope.debuggers.forward_debugger",
    "SequentialDebugger": "endoscope.debuggers.wrappers.sequential_debugger",
    "build_from_config": "endoscope.config",
    "capture": "endoscope.capturing.seen",
    "get_layer_by_name": "endoscope.layers",
    "load_debug_outputs": "endoscope.pages.reader",
    "per_datapoint": "endoscope.values",
    "whole_batch": "endoscope.values",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'endoscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next access is a plain lookup
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
