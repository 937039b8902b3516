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
    """A hook around the call of a module, and its handle. With ``always``, ``after`` is also called after an exception,
    KeyboardInterrupt included, with the output None."""

    module: torch.nn.Module
    before: Function | None = None
    after: Function | None = None
    always: bool = False

    def register(self) -> HiddenHook:
        with _lock:
            call = self.module.__dict__.get(CALL)
            hooks = call.hooks if isinstance(call, HiddenHooks) else ()
            self.module.__dict__[CALL] = HiddenHooks(self.module, (*hooks, self))
        return self

    def remove(self) -> None:
        with _lock:
            call = self.module.__dict__.get(CALL)
            if isinstance(call, HiddenHooks):  # else the user has called module.compile() meanwhile
                hooks = tuple(hook for hook in call.hooks if hook is not self)
                self.module.__dict__[CALL] = HiddenHooks(self.module, hooks) if hooks else None


@dataclass(frozen=True, eq=False)
class HiddenHooks:
    """The hidden hooks of one module, which torch calls in place of the module itself."""

    module: torch.nn.Module
    hooks: tuple[HiddenHook, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        output, raised = None, True
        try:
            for hook in self.hooks:
                if hook.before is not None:
                    hook.before(self.module, args, kwargs)
            output = self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            raised = False
        finally:
            for hook in self.hooks:
                if hook.after is not None and (hook.always or not raised):
                    hook.after(self.module, args, output)
        return output


_lock = threading.RLock()
