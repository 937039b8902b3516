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
from torch._C import _len_torch_dispatch_stack as _modes
from torch.compiler import is_dynamo_compiling as _is_dynamo_compiling
from torch.fx import _symbolic_trace

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

    __slots__ = ("_function", "_id")

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        self._id = id(module)  # the module holds the hook, so the id stays its own
        self._function = function

    def __call__(self, module: torch.nn.Module, *args: Any) -> None:
        if (  # as `_traced` asks; written out, because a call costs many times as much here as elsewhere
            id(module) == self._id
            and not _is_dynamo_compiling()
            and not (compiler._is_compiling_flag and _modes())
            and not _symbolic_trace._is_fx_tracing_flag
            and _get_tracing_state() is None
        ):
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
        or (compiler._is_compiling_flag and _modes() > 0)  # the flag is that of all threads
        or _symbolic_trace._is_fx_tracing_flag
        or _get_tracing_state() is not None
    )


class _HiddenHooks:
    """Hooks that a module does not show: called round its call, from where torch keeps what ``m.compile()`` made.

    That place is left out of copies of the module, and torch looks there for a function and for nothing else.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before: tuple[Function, ...] = ()
        self._after: tuple[Function, ...] = ()

    @classmethod
    def of(cls, module: torch.nn.Module) -> _HiddenHooks:
        """The module's own, made and put into its place when there is none."""
        with _hiding:
            found = module.__dict__.get("_compiled_call_impl")
            if not isinstance(found, cls):
                found = module.__dict__["_compiled_call_impl"] = cls(module)
            return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _traced():
            return self._module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        for function in self._before:
            function(self._module, args, kwargs)
        output = self._module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        for function in self._after:
            function(self._module, args, output)
        return output

    def add(self, *, before: Function | None = None, after: Function | None = None) -> _Hidden:
        with _hiding:
            self._before += (before,) if before else ()
            self._after += (after,) if after else ()
        return _Hidden(self, before, after)

    def discard(self, before: Function | None, after: Function | None) -> None:
        with _hiding:
            self._before = tuple(f for f in self._before if f is not before)
            self._after = tuple(f for f in self._after if f is not after)
            place = self._module.__dict__
            if not self._before and not self._after and place.get("_compiled_call_impl") is self:
                place["_compiled_call_impl"] = None


@dataclass(frozen=True)
class _Hidden:
    """The handle of a hidden hook."""

    hooks: _HiddenHooks
    before: Function | None
    after: Function | None

    def remove(self) -> None:
        self.hooks.discard(self.before, self.after)


_hiding = threading.RLock()


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
            self._handles.append(_HiddenHooks.of(module).add(after=function))
        else:
            self._handles.append(module.register_forward_hook(Hook(module, function)))

    def before_forward(
        self, module: torch.nn.Module, function: Function, *, hidden: bool = False, with_kwargs: bool = False
    ) -> None:
        """Call ``function(module, input)`` before each forward of ``module``, ahead of its other hooks.

        ``with_kwargs`` calls ``function(module, input, kwargs)``.
        """
        if hidden:
            before = function if with_kwargs else (lambda module, input, kwargs: function(module, input))
            self._handles.append(_HiddenHooks.of(module).add(before=before))
        else:
            hook = Hook(module, function)
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=with_kwargs))

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
            if self._call is None:
                self._patch()
            if id(module) not in self._modules:
                compiled = module.__dict__.get("_compiled_call_impl")  # what m.compile() made
                if isinstance(compiled, _HiddenHooks):
                    compiled = None
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
