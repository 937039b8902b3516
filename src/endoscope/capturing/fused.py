"""Modules that torch computes in one fused kernel unless it finds hooks on them, and hooks that it does not find.

In evaluation torch computes an ``nn.TransformerEncoderLayer`` in one kernel, whose last bits differ from those of the
layers inside it. A hook on any of these would change what the loop computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from endoscope.torch_private import is_traced

Function = Callable[..., None]


def fused_layers(root: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
    """Every module that torch may compute in a fused kernel, with the encoder layer that does so. Encoder layers that
    have hooks already are left out: torch does not fuse them."""
    layers: dict[torch.nn.Module, torch.nn.Module] = {}
    for layer in root.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer):
            parts = list(layer.modules())
            if not any(m._forward_hooks or m._forward_pre_hooks for m in parts):
                layers.update(dict.fromkeys(parts, layer))
    return layers


CALL = "_compiled_call_impl"
"""Where ``module.compile()`` puts its call. Torch leaves it out of copies of the module and looks for no hook there."""


@dataclass(frozen=True, eq=False)
class HiddenHook:
    """A hook around the call of a module, and its handle. Removed by `remove`."""

    hooks: HiddenHooks
    before: Function | None = None
    after: Function | None = None
    always: bool = False

    def remove(self) -> None:
        self.hooks.discard(self)


class HiddenHooks:
    """The hidden hooks of one module, which torch calls in place of the module itself."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._hooks: tuple[HiddenHook, ...] = ()

    @classmethod
    def of(cls, module: torch.nn.Module) -> HiddenHooks:
        """The hidden hooks of a module; made and installed if it has none."""
        with _lock:
            call = module.__dict__.get(CALL)
            if not isinstance(call, cls):
                call = module.__dict__[CALL] = cls(module)
            return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return self._module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        hooks = self._hooks
        for hook in hooks:
            if hook.before is not None:
                hook.before(self._module, args, kwargs)
        output, returned = None, False
        try:
            output = self._module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            returned = True
        finally:
            for hook in hooks:
                if hook.after is not None and (returned or hook.always):
                    hook.after(self._module, args, output)
        return output

    def add(self, *, before: Function | None = None, after: Function | None = None, always: bool = False) -> HiddenHook:
        """``after`` is called with the output None if the module raises and ``always`` is set."""
        hook = HiddenHook(self, before, after, always)
        with _lock:
            self._hooks += (hook,)
        return hook

    def discard(self, hook: HiddenHook) -> None:
        with _lock:
            self._hooks = tuple(other for other in self._hooks if other is not hook)
            attributes = self._module.__dict__
            if not self._hooks and attributes.get(CALL) is self:
                attributes[CALL] = None


_lock = threading.RLock()
