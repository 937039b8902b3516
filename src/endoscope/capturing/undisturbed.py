"""Running a model again without a trace.

A twin of the model runs. Its modules share the parameters of the user's modules and own everything else, so that the
user's modules are never touched, and may run on another thread meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from endoscope.capturing.fused import CALL
from endoscope.capturing.randomness import preserve_random
from endoscope.errors import ConfigError

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@contextlib.contextmanager
def undisturbed(model: nn.Module, *, run_hooks: bool = False) -> Iterator[Twin]:
    """Inside this block the twin of a model may be run, without gradient.

    Everything is restored afterwards: the modules with their buffers, train/eval flags, hooks and attributes that the
    forward sets (``self.aux_loss = ...``); torch's random generators (in train mode also those of ``random`` and
    ``numpy.random``); grad and inference mode; the autocast cache. Compiled modules run uncompiled.

    Hooks that torch itself defines (weight norm, pruning, ...) run, because the model computes something else without
    them. All others run only with ``run_hooks``, because a hook that fires twice collects twice. What a forward writes
    into parameters, or into an object that an attribute holds, is not undone.
    """
    cached = torch.is_autocast_cache_enabled()
    # Models draw from random and numpy.random (layer drop, masking) in training; restoring those is slow.
    with preserve_random(python=model.training), torch.inference_mode(False), torch.no_grad():
        try:
            # Otherwise the caller's own forward would find weights in the cache that were cast without gradient.
            torch.set_autocast_cache_enabled(False)
            yield Twin(model, run_hooks=run_hooks)
        finally:
            torch.set_autocast_cache_enabled(cached)


class Twin:
    """A second set of a model's modules, with the same parameters, and with own buffers and attributes."""

    def __init__(self, model: nn.Module, *, run_hooks: bool) -> None:
        self._run_hooks = run_hooks
        self._buffers: dict[int, Tensor] = {}
        self._twins: dict[nn.Module, nn.Module] = {}
        waiting = [model]
        while waiting:  # model.modules() takes several times as long on a deep model
            module = waiting.pop()
            if module not in self._twins:
                self._twins[module] = self._twin(module)
                waiting.extend(child for child in module.__dict__["_modules"].values() if child is not None)
        for module, twin in self._twins.items():
            if twin is not module:
                self._connect(twin)
        self.model = self._twins[model]

    def add_forward_hook(self, module: nn.Module, hook: Callable[[nn.Module, Any, Any], Any]) -> None:
        """Add a forward hook to the twin of one of the model's modules, after all other hooks."""
        twin = self._twins.get(module)
        if twin is None:
            raise ConfigError(f"the {type(module).__name__} is not a layer of this {type(self.model).__name__}")
        twin.__dict__["_forward_hooks"][-1] = hook  # torch numbers its hooks from 0

    def _twin(self, module: nn.Module) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):  # lives in C++, where attributes cannot be exchanged
            return module
        twin: nn.Module = object.__new__(type(module))
        own = twin.__dict__
        own.update(module.__dict__)
        own["_parameters"] = own["_parameters"].copy()
        own["_buffers"] = {name: self._copy(buffer) for name, buffer in own["_buffers"].items()}
        for name in _HOOKS:
            hooks = own[name].items()
            own[name] = OrderedDict((n, hook) for n, hook in hooks if self._run_hooks or _is_from_torch(hook))
        return twin

    def _copy(self, buffer: Tensor | None) -> Tensor | None:
        if buffer is None or nn.parameter.is_lazy(buffer):
            return buffer
        if id(buffer) not in self._buffers:
            self._buffers[id(buffer)] = buffer.clone()
        return self._buffers[id(buffer)]

    def _connect(self, twin: nn.Module) -> None:
        """Let a twin refer to twins where its module refers to modules."""
        own = twin.__dict__
        children = own["_modules"] = {name: self._exchanged(child) for name, child in own["_modules"].items()}
        for name in own.keys() - _OF_EVERY_MODULE:
            own[name] = self._exchanged(own[name])
        if "_orig_mod" in children and "forward" in own:  # what torch.compile(module) returns
            own["forward"] = children["_orig_mod"].__call__
        muted = not self._run_hooks and any(_global_hooks())
        own[CALL] = partial(_without_global_hooks, twin) if muted else None

    def _exchanged(self, value: Any) -> Any:
        """A value of an attribute, with twins in place of modules."""
        if isinstance(value, nn.Module):
            return self._twins.get(value, value)
        if type(value) is MethodType and value.__self__ in self._twins:
            return MethodType(value.__func__, self._twins[value.__self__])
        if type(value) in (list, tuple):
            return type(value)(map(self._exchanged, value)) if _holds_modules(value) else value
        if type(value) is dict and _holds_modules(value.values()):
            return dict(zip(value, map(self._exchanged, value.values()), strict=True))
        return value


def _holds_modules(values: Any) -> bool:
    return any(isinstance(v, nn.Module) for v in values)


def _is_from_torch(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.partition(".")[0] == "torch" or isinstance(hook, BasePruningMethod)


def _global_hooks() -> list[Any]:
    return [getattr(nn.modules.module, f"_global{name}", None) for name in _HOOKS]


def _without_global_hooks(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module with its own forward hooks, and without those that are registered for all modules."""
    for number, hook in module._forward_pre_hooks.items():
        if number in module._forward_pre_hooks_with_kwargs:
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        elif (changed := hook(module, args)) is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    output = module.forward(*args, **kwargs)
    for number, hook in module._forward_hooks.items():
        named = (kwargs,) if number in module._forward_hooks_with_kwargs else ()
        changed = hook(module, args, *named, output)
        output = output if changed is None else changed
    return output
