"""Compiled modules: made to run uncompiled while they are watched, because compiled code calls no new hooks.

What was compiled stays compiled and is used again afterwards. Other models are left alone, which is why
``torch.compiler.set_stance`` is not used: it holds for the complete process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from endoscope.capturing.fused import CALL, HiddenHooks
from endoscope.torch_private import optimized_module


@dataclass
class _Eager:
    """A module that runs uncompiled, the call that ``module.compile()`` made, and who to notify."""

    module: torch.nn.Module
    compiled_call: Any
    listeners: list[Callable[[], None]] = field(default_factory=list)


class _EagerModules:
    """The modules of this process that run uncompiled now. Several debuggers may ask for the same one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._modules: dict[int, _Eager] = {}
        self._wrapper: Any = None
        self._wrapper_call: Any = None

    def enter(self, module: torch.nn.Module, notify: Callable[[], None]) -> None:
        """Run a module uncompiled until `leave`. ``notify`` is called if it is compiled, now or later."""
        with self._lock:
            if self._wrapper is None:
                self._patch()
            eager = self._modules.get(id(module))
            if eager is None:
                eager = self._modules[id(module)] = _Eager(module, _take_compiled_call(module))
            eager.listeners.append(notify)
        if eager.compiled_call is not None or (self._wrapper is not None and isinstance(module, self._wrapper)):
            notify()

    def leave(self, module: torch.nn.Module) -> None:
        with self._lock:
            eager = self._modules[id(module)]
            eager.listeners.pop()
            if eager.listeners:
                return
            if eager.compiled_call is not None:
                module.__dict__[CALL] = eager.compiled_call
            del self._modules[id(module)]
            if not self._modules and self._wrapper is not None:
                self._wrapper.__call__ = self._wrapper_call
                self._wrapper = None

    def _patch(self) -> None:
        """Replace the call of the class that ``torch.compile(module)`` wraps a module in."""
        self._wrapper = optimized_module()
        if self._wrapper is None:  # nothing has been compiled in this process
            return
        original = self._wrapper_call = self._wrapper.__call__

        def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            eager = self._modules.get(id(wrapper._orig_mod))
            if eager is None:
                return original(wrapper, *args, **kwargs)
            for notify in eager.listeners:
                notify()
            return wrapper._orig_mod(*args, **kwargs)

        self._wrapper.__call__ = call


def _take_compiled_call(module: torch.nn.Module) -> Any:
    """Remove the call that ``module.compile()`` made from the module, and return it."""
    call = module.__dict__.get(CALL)
    if call is None or isinstance(call, HiddenHooks):
        return None
    module.__dict__[CALL] = None
    return call


eager_modules = _EagerModules()
