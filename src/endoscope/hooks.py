"""HookSet: the only place that registers and removes hooks on a user's modules.

A hook must never be the reason that a user's own code fails, so it is an object of its own kind: a copy of the model
(`copy.deepcopy` for an EMA, `torch.save` of a whole module, DataParallel's replicas) carries no live hook with it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import compiler
from torch._C import _get_tracing_state
from torch.compiler import is_dynamo_compiling as _is_dynamo_compiling
from torch.fx import _symbolic_trace
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from endoscope.errors import EndoscopeError
from endoscope.layers import unwrap

Function = Callable[..., None]

ignore = contextlib.nullcontext().__exit__
"""What a hook becomes in a copy of the model: a call that takes anything and does nothing. It is the standard
library's, so that a model saved with it opens where Endoscope is not installed."""


class _NotScriptable(EndoscopeError, AttributeError):
    """So that ``getattr(hook, "__name__", None)`` still gives None."""


class Hook:
    """A function called for one module only; in any copy of that module it is `ignore`."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        self._id = id(module)  # the module holds the hook, so the id stays its own
        self._function = function

    def __call__(self, module: torch.nn.Module, *args: Any) -> None:
        if id(module) == self._id and not _traced():
            self._function(module, *args)

    @property
    def __name__(self) -> str:
        """Asked for by torch.jit.script, which compiles hooks and could not compile this one."""
        raise _NotScriptable(
            "torch.jit.script takes no model that is being watched; set debugger.enabled = False first"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return ignore

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _traced() -> bool:
    """Whether this forward computes nothing: it is being compiled, exported or traced, and must not hold our calls."""
    return (
        _is_dynamo_compiling()  # before all others, so that dynamo traces none of them
        or compiler._is_compiling_flag
        or _symbolic_trace._is_fx_tracing_flag
        or _get_tracing_state() is not None
    )


class _ForAnyModule:
    """One of torch's hooks for all modules, there while it is needed; it passes on the calls of single modules."""

    def __init__(self, register: Callable[[Any], Any]) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._functions: dict[torch.nn.Module, tuple[Function, ...]] = {}
        self._handle: Any = None

    def __call__(self, module: torch.nn.Module, *args: Any) -> None:
        if not _traced():
            for function in self._functions.get(module, ()):
                function(module, *args)

    def add(self, module: torch.nn.Module, function: Function) -> _Entry:
        with self._lock:
            if not self._functions:
                self._handle = self._register(self)
            self._functions[module] = (*self._functions.get(module, ()), function)
        return _Entry(self, module, function)

    def discard(self, module: torch.nn.Module, function: Function) -> None:
        with self._lock:
            left = tuple(f for f in self._functions[module] if f is not function)
            if left:
                self._functions[module] = left
            else:
                del self._functions[module]
            if not self._functions:
                self._handle.remove()


@dataclass(frozen=True)
class _Entry:
    """The handle of a hidden hook."""

    hook: _ForAnyModule
    module: torch.nn.Module
    function: Function

    def remove(self) -> None:
        self.hook.discard(self.module, self.function)


_before_any = _ForAnyModule(register_module_forward_pre_hook)
_after_any = _ForAnyModule(register_module_forward_hook)


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
        self._eager: list[torch.nn.Module] = []

    def __len__(self) -> int:
        return len(self._handles)

    def forward(self, module: torch.nn.Module, function: Function, *, hidden: bool = False) -> None:
        """Call ``function(module, input, output)`` after each forward of ``module``.

        ``hidden`` leaves no hook on the module itself: some modules look for hooks and compute otherwise with them.
        """
        if hidden:
            self._handles.append(_after_any.add(module, function))
        else:
            self._handles.append(module.register_forward_hook(Hook(module, function)))

    def before_forward(self, module: torch.nn.Module, function: Function, *, hidden: bool = False) -> None:
        """Call ``function(module, input)`` before each forward of ``module``, ahead of its other hooks."""
        if hidden:
            self._handles.append(_before_any.add(module, function))
        else:
            self._handles.append(module.register_forward_pre_hook(Hook(module, function), prepend=True))

    def run_eagerly(self, model: torch.nn.Module, tell: Callable[[], None]) -> None:
        """Make the compiled parts of ``model`` run uncompiled until `remove`; ``tell`` is called when there are any.

        Compiled code calls no hook that was added after its first call. Other models are left alone, which is why
        ``torch.compiler.set_stance`` is not used: it holds for the whole process. What was compiled stays compiled
        and is used again afterwards.
        """
        for module in {*unwrap(model).modules(), *model.modules()}:
            _eager.enter(module, tell)
            self._eager.append(module)

    def remove(self) -> None:
        """Remove every hook and give compiled parts their compiled code back; may be called twice."""
        while self._handles:
            self._handles.pop().remove()
        while self._eager:
            _eager.leave(self._eager.pop())


class _Eager:
    """Which modules run uncompiled now, in the whole process; several debuggers may ask for the same one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._modules: dict[int, tuple[torch.nn.Module, Any, list[Callable[[], None]]]] = {}
        self._call: Any = None

    def enter(self, module: torch.nn.Module, tell: Callable[[], None]) -> None:
        with self._lock:
            if not self._modules:
                self._patch()
            if id(module) not in self._modules:
                compiled = module.__dict__.get("_compiled_call_impl")  # what m.compile() made
                if compiled is not None:
                    module.__dict__["_compiled_call_impl"] = None
                self._modules[id(module)] = module, compiled, []
            _, compiled, asking = self._modules[id(module)]
            asking.append(tell)
        if compiled is not None or type(module).__name__ == "OptimizedModule":
            tell()

    def leave(self, module: torch.nn.Module) -> None:
        with self._lock:
            _, compiled, asking = self._modules[id(module)]
            asking.pop()
            if asking:
                return
            if compiled is not None:
                module.__dict__["_compiled_call_impl"] = compiled
            del self._modules[id(module)]
            if not self._modules:
                self._unpatch()

    def _patch(self) -> None:
        """What torch.compile(m) made is called through its class: there the modules in question are let past it."""
        eval_frame = sys.modules.get("torch._dynamo.eval_frame")
        if eval_frame is None:  # nothing has been compiled in this process
            return
        self._kind: Any = eval_frame.OptimizedModule
        original = self._call = self._kind.__call__

        def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            asked = self._modules.get(id(wrapper._orig_mod))
            if asked is None:
                return original(wrapper, *args, **kwargs)
            for tell in asked[2]:
                tell()
            return wrapper._orig_mod(*args, **kwargs)

        self._kind.__call__ = call

    def _unpatch(self) -> None:
        if self._call is not None:
            self._kind.__call__ = self._call
            self._call = None


_eager = _Eager()
