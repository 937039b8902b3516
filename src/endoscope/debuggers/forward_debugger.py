"""ForwardDebugger: a debugger that sees one layer's input and output while the model runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

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

    ``layer_name`` is dotted, or a pattern (``"backbone.*"``) that `SequentialDebugger` expands to one debugger a layer.
    ``calls`` says what is kept of a layer that runs several times in one forward: ``"last"``, or ``"all"`` as a list.
    """

    calls: Calls = "last"
    last_capture: Any = None
    """A copy of what `process_forward` returned last, when `forward_hook_fn` is used by itself."""

    def __init__(self, layer_name: str, *, calls: Calls = "last") -> None:
        self.layer_name = layer_name
        self.calls = checked_calls(calls)

    @abstractmethod
    def process_forward(self, module: torch.nn.Module, input: Any, output: Any) -> Any:
        """Return what to keep. Called inside the forward, without gradient; the result is copied at once.

        One that only puts ``output`` into a dict is called when hooks are attached, and not at every step: its code
        shows what it returns.
        """

    @property
    def hooked(self) -> Callable[[torch.nn.Module, Any, Any], Any]:
        """What a hook calls: `process_forward`, or the ``process_stored`` of a class that defines both.

        The latter leaves out what can be made of the rest when it is read: see `endoscope.values.Summary`.
        """
        if "process_forward" not in vars(self):
            for cls in type(self).__mro__:
                if "process_forward" in vars(cls):
                    stored: Callable[..., Any] | None = getattr(self, "process_stored", None)
                    return stored if stored is not None and "process_stored" in vars(cls) else self.process_forward
        return self.process_forward

    def forward_hook_fn(self, module: torch.nn.Module, input: Any, output: Any) -> None:
        """The hook to register when this debugger is used alone."""
        with torch.no_grad():
            self.last_capture = snapshot(self.process_forward(module, input, output)).wait()

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        return self.last_capture
