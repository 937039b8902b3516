"""ForwardDebugger: a debugger that sees one layer's input and output while the model runs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.debuggers.base_debugger import BaseDebugger, Calls, checked_calls


class ForwardDebugger(BaseDebugger):
    """Look at a layer's output in its forward hook.

    >>> class Norm(ForwardDebugger):
    ...     def process_forward(self, module, input, output):
    ...         return {"norm": float(output.norm())}
    >>> layer = torch.nn.Linear(2, 2)
    >>> norm = Norm("fc")
    >>> handle = layer.register_forward_hook(norm.forward_hook_fn)
    >>> _ = layer(torch.zeros(1, 2))
    >>> sorted(norm.last_capture)
    ['norm']

    ``layer_name`` is dotted, or a pattern (``"backbone.*"``) that `SequentialDebugger` expands to one debugger per
    layer. ``calls`` is what to store of a layer that runs several times in one forward: ``"last"``, or ``"all"`` as a
    list.
    """

    keeps_output: ClassVar[str | None] = None
    """For a class whose `process_forward` returns the layer's output under this key, its statistics under ``"stats"``,
    ``"layer_name"``, and nothing else. `SequentialDebugger` then stores the output without calling `process_forward`,
    and the statistics are computed when they are read. A subclass that overrides `process_forward` does not inherit it.
    """

    calls: Calls = "last"
    last_capture: Any = None
    """A copy of the last result of `process_forward`, if `forward_hook_fn` is used by itself."""

    def __init__(self, layer_name: str, *, calls: Calls = "last") -> None:
        self.layer_name = layer_name
        self.calls = checked_calls(calls)

    @abstractmethod
    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        """Return what to store. Called inside the forward, without gradient; the result is copied at once."""

    def forward_hook_fn(self, module: torch.nn.Module, input: Any, output: Any) -> None:
        """The hook to register if this debugger is used without `SequentialDebugger`."""
        with torch.no_grad():
            self.last_capture = snapshot(self.process_forward(module, input, output)).wait()

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        return self.last_capture
