"""Running a model once more without anybody noticing. Owns what such a forward must leave as it was.

Runs on the thread that calls it; while it lasts, no other thread may run the model.
"""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = tuple("_global" + name for name in _HOOKS)

_READ_IN_EVAL = frozenset((
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
))  # fmt: skip


class Isolation:
    """What the modules' attributes were, and how to put them back."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def keep(self, attributes: dict[str, Any]) -> None:
        self._before.append((attributes, attributes.copy()))

    def add_forward_hook(self, module: nn.Module, hook: Callable[[nn.Module, Any, Any], Any]) -> None:
        """A forward hook after all others, in a dictionary of its own: the module's stays as it is."""
        own = module.__dict__
        self.keep(own)
        own["_forward_hooks"] = OrderedDict(own["_forward_hooks"])
        own["_forward_hooks"][-1] = hook  # torch numbers its hooks from 0

    def restore(self) -> None:
        while self._before:
            attributes, before = self._before.pop()
            attributes.update(before)
            if len(attributes) > len(before):
                for name in attributes.keys() - before.keys():
                    del attributes[name]


@contextlib.contextmanager
def undisturbed(model: nn.Module, *, run_hooks: bool = False) -> Iterator[Isolation]:
    """Within this block the model may be run, without gradient; afterwards nothing shows that it was.

    Left as they were: buffers, train/eval flags, attributes that the forward sets (``self.aux_loss = ...``), hooks,
    torch's random generators (in train mode also those of ``random`` and ``numpy.random``), grad and inference mode,
    the autocast cache. Buffers are exchanged for copies rather than written back, because a gradient that is still to
    be computed may hold on to the originals. Compiled modules run uncompiled.

    Hooks that torch itself defines (weight norm, pruning, ...) run, since the model computes something else without
    them; all others are muted unless ``run_hooks``, since a hook that fires twice collects twice. What a forward writes
    into parameters, or into an object that an attribute holds, is not undone.
    """
    isolation = Isolation()
    # What draws from random and numpy.random (layer drop, masking) does so in training, and keeping them takes long.
    restore_generators = _random_states(python=model.training)
    restore_global_hooks = partial(vars(nn.modules.module).update, _global_hooks())
    cached = torch.is_autocast_cache_enabled()
    try:
        # A weight that is cast without gradient must not be what the caller's own forward finds in the cache.
        torch.set_autocast_cache_enabled(False)
        with torch.inference_mode(False), torch.no_grad():
            _isolate(model, isolation, run_hooks=run_hooks)
            yield isolation
    finally:
        isolation.restore()
        restore_global_hooks()
        torch.set_autocast_cache_enabled(cached)
        for restore in restore_generators:
            restore()


def _isolate(model: nn.Module, isolation: Isolation, *, run_hooks: bool) -> None:
    copies: dict[int, Tensor] = {}
    seen = {model}
    waiting = [model]
    while waiting:  # not model.modules(), which takes several times as long on a deep model
        module = waiting.pop()
        own = module.__dict__
        isolation.keep(own)
        if own["_buffers"] and not _only_reads(module):
            own["_buffers"] = {name: _copy(b, copies) for name, b in own["_buffers"].items()}
        if "_compiled_call_impl" in own:
            own["_compiled_call_impl"] = None
        if not run_hooks:
            for name in _HOOKS:
                if own[name]:
                    own[name] = _torchs(own[name])
        children = own["_modules"]
        if "_orig_mod" in children and "forward" in own:
            own["forward"] = children["_orig_mod"].__call__
        for child in children.values():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    if not run_hooks:
        vars(nn.modules.module).update({name: _torchs(hooks) for name, hooks in _global_hooks().items()})


def _global_hooks() -> dict[str, Any]:
    return {name: vars(nn.modules.module)[name] for name in _GLOBAL_HOOKS}


def _only_reads(module: nn.Module) -> bool:
    """Whether a forward leaves the buffers alone; worth knowing, since a CNN has more of these than of anything."""
    return not module.training and type(module) in _READ_IN_EVAL and "forward" not in vars(module)


def _copy(buffer: Tensor | None, copies: dict[int, Tensor]) -> Tensor | None:
    if buffer is None or nn.parameter.is_lazy(buffer):
        return buffer
    if id(buffer) not in copies:
        copies[id(buffer)] = buffer.clone()
    return copies[id(buffer)]


def _torchs(hooks: dict[int, Any]) -> OrderedDict[int, Any]:
    return OrderedDict((number, hook) for number, hook in hooks.items() if _is_torchs(hook))


def _is_torchs(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    defined_in = getattr(hook, "__module__", None) or type(hook).__module__
    return defined_in.partition(".")[0] == "torch" or isinstance(hook, BasePruningMethod)


def _random_states(*, python: bool) -> list[Callable[[], Any]]:
    """What puts the random generators back into their present states; those of Python and numpy only if asked to."""
    restore: list[Callable[[], Any]] = [partial(torch.set_rng_state, torch.get_rng_state())]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        restore.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if python:
        restore.append(partial(random.setstate, random.getstate()))
        restore.append(partial(np.random.set_state, np.random.get_state()))
    return restore
