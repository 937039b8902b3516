"""HookSet: the only place that registers and removes hooks on a user's modules.

A hook must never be the reason that a user's own code fails, so it is an object of its own kind: a copy of the model
(`copy.deepcopy` for an EMA, `torch.save` of a whole module, DataParallel's replicas) carries no live hook with it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from endoscope.layers import unwrap

ignore = contextlib.nullcontext().__exit__
"""What a hook becomes in a copy of the model: a call that takes anything and does nothing. It is the standard
library's, so that a model saved with it opens where Endoscope is not installed."""


class Hook:
    """A function called for one module only; in any copy of that module it is `ignore`."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        self._id = id(module)  # the module holds the hook, so the id stays its own
        self._function = function

    def __call__(self, module: torch.nn.Module, *args: Any) -> None:
        if id(module) == self._id:
            self._function(module, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return ignore

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class HookSet:
    """Hooks that are attached and removed together.

    >>> hooks = HookSet()
    >>> layer = torch.nn.ReLU()
    >>> hooks.forward(layer, lambda module, input, output: print(tuple(output.shape)))
    >>> _ = layer(torch.zeros(2))
    (2,)
    >>> hooks.remove()
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._eager: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._handles)

    def forward(self, module: torch.nn.Module, function: Callable[[torch.nn.Module, Any, Any], None]) -> None:
        """Call ``function(module, input, output)`` after each forward of ``module``."""
        self._handles.append(module.register_forward_hook(Hook(module, function)))

    def before_forward(self, module: torch.nn.Module, function: Callable[[torch.nn.Module, Any], None]) -> None:
        """Call ``function(module, input)`` before each forward of ``module``, ahead of its other hooks."""
        self._handles.append(module.register_forward_pre_hook(Hook(module, function), prepend=True))

    def run_eagerly(self, model: torch.nn.Module) -> int:
        """Make the compiled parts of ``model`` run uncompiled until `remove`; returns how many there were.

        Compiled code calls no hook that was added after its first call. Other models are left alone, which is why
        ``torch.compiler.set_stance`` is not used: it holds for the whole process. What was compiled stays compiled
        and is used again afterwards.
        """
        modules = set(unwrap(model).modules()) | set(model.modules())
        for module in modules:
            compiled = module.__dict__.get("_compiled_call_impl")
            if compiled is not None:
                module.__dict__["_compiled_call_impl"] = None
                self._eager.append(partial(module.__dict__.__setitem__, "_compiled_call_impl", compiled))
        for wrapper in _compiled_wrappers(modules):
            before = wrapper.__dict__["forward"]
            wrapper.__dict__["forward"] = wrapper._orig_mod.__call__
            self._eager.append(partial(wrapper.__dict__.__setitem__, "forward", before))
        return len(self._eager)

    def remove(self) -> None:
        """Remove every hook and give compiled parts their compiled code back; may be called twice."""
        while self._handles:
            self._handles.pop().remove()
        while self._eager:
            self._eager.pop()()


def _compiled_wrappers(modules: set[torch.nn.Module]) -> list[Any]:
    """The objects that ``torch.compile(m)`` returned for any of ``modules``, wherever the user keeps them."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None:  # nothing has been compiled in this process
        return []
    kind = eval_frame.OptimizedModule
    return [o for o in gc.get_objects() if type(o) is kind and "forward" in o.__dict__ and o._orig_mod in modules]
