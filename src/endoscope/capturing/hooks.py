"""HookSet: the only place that registers and removes hooks on a user's modules.

A hook must never be the reason that the user's own code fails. In copies of the model (`copy.deepcopy` for an EMA,
`torch.save` of a module, the replicas of DataParallel) our hooks do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from endoscope.capturing.compiled import eager_modules
from endoscope.capturing.fused import Function, HiddenHook
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.layers import unwrap
from endoscope.torch_private import is_traced

ignore = contextlib.nullcontext().__exit__
"""What a hook becomes in a copy of the model: a call that takes anything and does nothing. It is from the standard
library, so that a model saved with it can be loaded where Endoscope is not installed."""


def check_hooks(model: torch.nn.Module) -> None:
    """Raise ConfigError if a model calls no hooks."""
    if isinstance(unwrap(model), torch.jit.ScriptModule):
        raise ConfigError(
            f"a {type(model).__name__} calls no hooks, so its layers cannot be watched; use the nn.Module that it was "
            "made from"
        )


class _NotScriptable(EndoscopeError, AttributeError):
    """An AttributeError, so that ``getattr(hook, "__name__", None)`` gives None."""


class Hook:
    """A function that is called for one module only. In a copy of that module it becomes `ignore`."""

    __slots__ = ("_function", "_id")

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        self._id = id(module)  # stays unique: the module owns the hook
        self._function = function

    def __call__(self, module: torch.nn.Module, *args: Any) -> None:
        if id(module) == self._id and not is_traced():
            self._function(module, *args)

    @property
    def __name__(self) -> str:
        """Read by torch.jit.script, which compiles hooks and cannot compile this one."""
        raise _NotScriptable("torch.jit.script cannot compile a model with hooks; set debugger.enabled = False first")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return ignore

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class HookSet:
    """Hooks that are attached one by one and removed together.

    >>> hooks = HookSet()
    >>> layer = torch.nn.ReLU()
    >>> hooks.forward(layer, lambda module, input, output: print(tuple(output.shape)))
    >>> _ = layer(torch.zeros(2))
    (2,)
    >>> hooks.remove()

    ``hidden`` hooks are not registered with the module; see `endoscope.capturing.fused`.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._eager: list[torch.nn.Module] = []

    def __len__(self) -> int:
        return len(self._handles)

    def forward(
        self, module: torch.nn.Module, function: Function, *, hidden: bool = False, always: bool = False
    ) -> None:
        """Call ``function(module, input, output)`` after each forward of ``module``; with ``always`` also after one
        that raised an Exception."""
        if hidden:
            self._handles.append(HiddenHook(module, after=function, always=always).register())
        else:
            self._handles.append(module.register_forward_hook(Hook(module, function), always_call=always))

    def before_forward(
        self, module: torch.nn.Module, function: Function, *, hidden: bool = False, with_kwargs: bool = False
    ) -> None:
        """Call ``function(module, input)`` before each forward of ``module``, ahead of its other hooks; with
        ``with_kwargs`` call ``function(module, input, kwargs)``."""
        if hidden:
            before = function if with_kwargs else (lambda module, input, kwargs: function(module, input))
            self._handles.append(HiddenHook(module, before=before).register())
        else:
            hook = Hook(module, function)
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=with_kwargs))

    def run_eagerly(self, model: torch.nn.Module, notify: Callable[[], None]) -> None:
        """Run the compiled parts of ``model`` uncompiled until `remove`. ``notify`` is called if there are any."""
        for module in {*unwrap(model).modules(), *model.modules()}:
            eager_modules.enter(module, notify)
            self._eager.append(module)

    def remove(self) -> None:
        """Remove every hook and let compiled parts run compiled again. May be called twice."""
        while self._handles:
            self._handles.pop().remove()
        while self._eager:
            eager_modules.leave(self._eager.pop())
