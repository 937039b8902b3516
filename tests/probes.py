"""The plainest debuggers, which keep what they are given, and the config node that names one."""

from __future__ import annotations

from typing import Any

from torch import nn

from endoscope import BackwardDebugger, ForwardDebugger


class Output(ForwardDebugger):
    """The layer's output, nothing computed."""

    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": output}


class Gradient(BackwardDebugger):
    """The gradient of the layer's output, nothing computed."""

    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        return {"gradient": grad_output}


def node(name: str, cls: type, **args: Any) -> dict[str, Any]:
    return {"name": name, "debugger_config": {"class": cls, "args": args}}
