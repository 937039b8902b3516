"""Running a model once more without anybody noticing. Owns what such a forward must leave as it was.

A twin of the model runs, whose modules share the parameters and own everything else, so that the user's modules are
never touched, and may run on another thread meanwhile.
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

from endoscope.capturing.randomness import random_kept
from endoscope.errors import ConfigError

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = tuple("_global" + name for name in _HOOKS)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))

_READ_IN_EVAL = frozenset((
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
))  # fmt: skip


@contextlib.contextmanager
def undisturbed(model: nn.Module, *, run_hooks: bool = False) -> Iterator[Twin]:
    """Within this block the twin of a model may be run, without gradient; afterwards nothing shows that it was.

    Left as they were: the modules with their buffers, train/eval flags, hooks and attributes that the forward sets
    (``self.aux_loss = ...``); torch's random generators (in train mode also those of ``random`` and ``numpy.random``);
    grad and inference mode; the autocast cache. Compiled modules run uncompiled.

    Hooks that torch itself defines (weight norm, pruning, ...) run, since the model computes something else without
    them; all others are muted unless ``run_hooks``, since a hook that fires twice collects twice. What a forward writes
    into parameters, or into an object that an attribute holds, is not undone.
    """
    cached = torch.is_autocast_cache_enabled()
    # What draws from random and numpy.random (layer drop, masking) does so in training, and keeping them takes long.
    with random_kept(python=model.training), torch.inference_mode(False), torch.no_grad():
        try:
            # A weight that is cast without gradient must not be what the caller's own forward finds in the cache.
            torch.set_autocast_cache_enabled(False)
            yield Twin(model, run_hooks=run_hooks)
        finally:
            torch.set_autocast_cache_enabled(cached)


class Twin:
    """A model's modules once more, with the same parameters, and with buffers and attributes of their own."""

    def __init__(self, model: nn.Module, *, run_hooks: bool) -> None:
        self._run_hooks = run_hooks
        self._alone = not run_hooks and any(_global_hooks().values())
        self._buffers: dict[int, Tensor] = {}
        self._twins: dict[nn.Module, nn.Module] = {}
        waiting = [model]
        while waiting:  # not model.modules(), which takes several times as long on a deep model
            module = waiting.pop()
            if module not in self._twins:
                self._twins[module] = self._made(module)
                waiting.extend(child for child in module.__dict__["_modules"].values() if child is not None)
        for module, twin in self._twins.items():
            if twin is not module:
                self._join(twin)
        self.model = self._twins[model]

    def add_forward_hook(self, module: nn.Module, hook: Callable[[nn.Module, Any, Any], Any]) -> None:
        """A forward hook after all others, on the twin of one of the model's modules."""
        twin = self._twins.get(module)
        if twin is None:
            raise ConfigError(f"the {type(module).__name__} is no layer of this {type(self.model).__name__}")
        twin.__dict__["_forward_hooks"][-1] = hook  # torch numbers its hooks from 0

    def _made(self, module: nn.Module) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):  # lives in C++, where no attribute can be exchanged
            return module
        twin: nn.Module = object.__new__(type(module))
        own = twin.__dict__
        own.update(module.__dict__)
        own["_parameters"] = own["_parameters"].copy()
        if own["_buffers"]:
            buffers = own["_buffers"]
            shared = _only_reads(module)
            own["_buffers"] = buffers.copy() if shared else {name: self._copy(b) for name, b in buffers.items()}
        for name in _HOOKS:
            own[name] = OrderedDict(own[name]) if self._run_hooks else _torchs(own[name])
        return twin

    def _join(self, twin: nn.Module) -> None:
        """Let a twin refer to twins where its module refers to modules."""
        own = twin.__dict__
        children = own["_modules"] = {name: self._of(child) for name, child in own["_modules"].items()}
        for name, value in own.items():
            if name not in _OF_EVERY_MODULE:
                own[name] = self._of(value)
        if "_orig_mod" in children and "forward" in own:
            own["forward"] = children["_orig_mod"].__call__
        own["_compiled_call_impl"] = partial(_without_global_hooks, twin) if self._alone else None

    def _of(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._twins.get(value, value)
        if type(value) is MethodType and value.__self__ in self._twins:
            return MethodType(value.__func__, self._twins[value.__self__])
        if type(value) in (list, tuple) and any(isinstance(v, nn.Module) for v in value):
            return type(value)(self._of(v) for v in value)
        if type(value) is dict and any(isinstance(v, nn.Module) for v in value.values()):
            return {k: self._of(v) for k, v in value.items()}
        return value

    def _copy(self, buffer: Tensor | None) -> Tensor | None:
        if buffer is None or nn.parameter.is_lazy(buffer):
            return buffer
        if id(buffer) not in self._buffers:
            self._buffers[id(buffer)] = buffer.clone()
        return self._buffers[id(buffer)]


def _without_global_hooks(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module with its own forward hooks only."""
    hooks: dict[int, Any] = module._forward_pre_hooks
    for number, hook in hooks.items():
        if number in module._forward_pre_hooks_with_kwargs:
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        elif (changed := hook(module, args)) is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    output = module.forward(*args, **kwargs)
    hooks = module._forward_hooks
    for number, hook in hooks.items():
        with_kwargs = number in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
        output = output if changed is None else changed
    return output


def _global_hooks() -> dict[str, Any]:
    return {name: vars(nn.modules.module)[name] for name in _GLOBAL_HOOKS}


def _only_reads(module: nn.Module) -> bool:
    """Whether a forward leaves the buffers alone; worth knowing, since a CNN has more of these than of anything."""
    return not module.training and type(module) in _READ_IN_EVAL and "forward" not in vars(module)


def _torchs(hooks: dict[int, Any]) -> OrderedDict[int, Any]:
    return OrderedDict((number, hook) for number, hook in hooks.items() if _is_torchs(hook))


def _is_torchs(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    defined_in = getattr(hook, "__module__", None) or type(hook).__module__
    return defined_in.partition(".")[0] == "torch" or isinstance(hook, BasePruningMethod)
