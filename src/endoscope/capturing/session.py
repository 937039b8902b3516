"""Captures: what the hooked debuggers have seen in the current forward, on each thread that calls the model.

The root module's pre-hook opens a window; layer hooks fill it; `take` closes it and hands it over. A window belongs to
one thread, so that several threads may call the model at once. Nothing of an earlier forward is ever handed out.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from endoscope.capturing.guard import Guard
from endoscope.capturing.hooks import Function, HookSet
from endoscope.capturing.snapshot import Form, Snapshot, owned_in
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.forms import form_of, may_draw, plain_function
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.errors import ConfigError
from endoscope.layers import get_layer_by_name, unwrap
from endoscope.values import apply_tensor_op, tensors_in

Hooked = ForwardDebugger | BackwardDebugger

_graph_task = torch._C._current_graph_task_id
"""The backward pass that is under way on this thread; -1 when there is none."""

MAX_CALLS_OF_A_PART = 1000
"""How many calls ``calls="all"`` keeps of a layer that is called without the model: there is no forward to end them."""


class Window:
    """One forward: by debugger, the captures of each call, how many calls there were, and what went wrong."""

    __slots__ = ("attached", "calls", "captures", "closed", "failures", "forwards", "handles", "once", "reasons")

    def __init__(self, attached: int, forwards: int) -> None:
        self.attached = attached  # which attaching of the hooks it belongs to: other threads keep theirs for a while
        self.forwards = forwards  # of the model since the last datapoint; 0 where only a part of it was called
        self.once: dict[str, Snapshot] = {}  # of layers that were called once, as most are; their calls are not counted
        self.captures: dict[str, dict[int, Snapshot]] = {}
        self.calls: dict[str, int] = {}
        self.failures: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.handles: list[Any] = []
        self.closed = False

    def count(self, name: str) -> int:
        """Count a call of a debugger's layer, and with it the first one, if that stands in ``once``; returns which one
        it is."""
        if name in self.once:
            self.captures[name] = {1: self.once.pop(name)}
            self.calls[name] = 1
        call = self.calls[name] = self.calls.get(name, 0) + 1
        return call

    def close(self) -> None:
        """Nothing more is taken in: gradients that come later belong to no datapoint, and their hooks go."""
        self.closed = True
        while self.handles:
            self.handles.pop().remove()


class _Thread(threading.local):
    window: Window | None = None
    paused = False


class Captures:
    """Attaches the debuggers of a model's layers, and collects what they return."""

    def __init__(self, model: torch.nn.Module, debuggers: Mapping[str, Hooked], guard: Guard) -> None:
        if debuggers and isinstance(unwrap(model), torch.jit.ScriptModule):
            raise ConfigError(
                f"a {type(model).__name__} calls no hooks, so its layers cannot be watched; give the nn.Module that it "
                "was made from"
            )
        self._model = model
        self._debuggers = debuggers
        self._names = [*debuggers]
        self._guard = guard
        self._hooks = HookSet()
        self._thread = _Thread()
        self._attached = 0
        self._model_called = False
        self._around: dict[str, torch.nn.Module] = {}

    def attach(self, tell_compiled: Callable[[], None]) -> None:
        """Register the hooks. ``tell_compiled`` is called when compiled parts of the model run uncompiled meanwhile."""
        if not self._debuggers:
            return
        try:
            self._attach(tell_compiled)
        except BaseException:
            self._hooks.remove()
            raise

    def _attach(self, tell_compiled: Callable[[], None]) -> None:
        by_layer: dict[torch.nn.Module, list[tuple[str, Hooked]]] = {}
        for name, debugger in self._debuggers.items():  # looked up now: the user may have exchanged a layer
            by_layer.setdefault(get_layer_by_name(self._model, debugger.layer_name), []).append((name, debugger))
        self._hooks.run_eagerly(self._model, tell_compiled)  # before the hidden hooks, which take the same place
        root = unwrap(self._model)
        fused = {} if isinstance(self._model, torch.nn.DataParallel) else _fused(root)
        self._around = {
            name: fused[layer]
            for layer, ds in by_layer.items()
            if fused.get(layer, layer) is not layer
            for name, _ in ds
        }
        self._hooks.before_forward(root, self._begin, hidden=root in fused)
        for layer, debuggers in by_layer.items():
            hook = self._hook(debuggers)
            try:
                self._hooks.forward(layer, hook, hidden=layer in fused)
            except RuntimeError as e:
                raise ConfigError(f"layer {debuggers[0][1].layer_name!r} takes no hook: {e}") from e

    def remove(self) -> None:
        """Remove the hooks and forget what was seen."""
        self._hooks.remove()
        self._attached += 1
        self._forget()

    def _forget(self) -> Window | None:
        window, self._thread.window = self._thread.window, None
        if window is None:
            return None
        window.close()
        return window if window.attached == self._attached else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls of the model inside belong to a debugger, not to the user: they are not captured."""
        thread = self._thread
        before = thread.paused, thread.window
        thread.paused, thread.window = True, None
        try:
            yield
        finally:
            thread.paused, thread.window = before

    def _begin(self, module: torch.nn.Module, input: Any) -> None:
        if self._thread.paused or _graph_task() != -1:  # where checkpointing computes a forward again
            return
        if self._thread.window is not None and _calls_itself(module):
            return
        before = self._forget()
        self._thread.window = Window(self._attached, 1 if before is None else before.forwards + 1)
        self._model_called = True

    def _hook(self, debuggers: Sequence[tuple[str, Hooked]]) -> Function:
        """What a layer's hook calls. Inside a running model each step of Python waits for memory: what is used at every
        call is looked up here, once."""
        thread, guard = self._thread, self._guard
        forward = [
            (n, d, d.calls == "last", d.hooked, may_draw(d, d.hooked))
            for n, d in debuggers
            if isinstance(d, ForwardDebugger)
        ]
        backward = [
            (n, d, d.process_backward, may_draw(d, d.process_backward))
            for n, d in debuggers
            if isinstance(d, BackwardDebugger)
        ]
        attached = self._attached

        def seen(module: torch.nn.Module, input: Any, output: Any) -> None:
            window = thread.window
            again = _graph_task() != -1  # activation checkpointing computes a layer a second time
            if window is None or window.attached != attached:
                if again or thread.paused:
                    return
                window = thread.window = Window(attached, 0)  # the user called a part of the model by itself
            if not again:
                once = window.once
                for name, debugger, last, function, draws in forward:
                    call = 0 if name not in once and name not in window.calls else window.count(name)
                    if name in guard.failures and guard.muted(name):
                        if not call:
                            window.count(name)
                        continue
                    try:
                        result = guard.call(name, debugger, draws, function, module, input, output)
                    except BaseException:
                        if not call:
                            window.count(name)
                        raise
                    if not call and last and type(result) is Snapshot and result.value is not None:
                        once[name] = result
                    else:
                        self._keep(window, name, debugger, call or window.count(name), result)
            if backward:
                self._await_gradients(window, backward, again, module, output)

        if len(debuggers) == len(forward) == 1 and forward[0][2] and (form := form_of(forward[0][3])) is not None:
            return self._copying(forward[0][0], forward[0][3], form, seen)
        return seen

    def _copying(self, name: str, function: Callable[..., Any], form: Form, otherwise: Function) -> Function:
        """What the hook of a layer calls whose one debugger only keeps the output; what is not as usual goes to
        ``otherwise``."""
        thread, failures, attached = self._thread, self._guard.failures, self._attached
        plain = plain_function(function)
        assert plain is not None, "only plain functions have a form"
        code = plain.__code__

        def seen(module: torch.nn.Module, input: Any, output: Any) -> None:
            window = thread.window
            if (
                window is not None
                and window.attached == attached
                and name not in window.once
                and name not in window.calls
                and name not in failures
                and plain.__code__ is code  # a notebook's %autoreload exchanges it
                and _graph_task() == -1
            ):
                copied = None
                try:
                    copied = owned_in(form, output)
                except Exception:  # noqa: BLE001  # it is tried once more, and told
                    pass
                except BaseException:
                    window.count(name)
                    raise
                if copied is not None:
                    window.once[name] = copied
                    return
            otherwise(module, input, output)

        return seen

    def _await_gradients(
        self,
        window: Window,
        backward: Sequence[tuple[str, BackwardDebugger, Callable[..., Any], bool]],
        again: bool,
        module: torch.nn.Module,
        output: Any,
    ) -> None:
        for name, debugger, function, draws in backward:
            call = max(window.calls.get(name, 0), 1) if again else window.count(name)
            try:
                guarded = partial(self._guard.call, name, debugger, draws, function, module)
                self._await_gradient(window, name, debugger, guarded, call, output)
            except Exception as e:  # noqa: BLE001  # an output that cannot be walked must not stop the forward
                window.failures[name] = self._guard.failed(name, e)

    def _keep(self, window: Window, name: str, debugger: Hooked, call: int, result: Snapshot | str) -> None:
        before = window.captures.get(name)
        is_last = before is None or call >= max(before)  # backward visits the calls last to first
        if isinstance(result, str) or result.value is None:
            if isinstance(result, str):
                window.failures[name] = result
            elif is_last:
                window.reasons[name] = "the debugger returned nothing"
            if is_last and debugger.calls == "last":
                window.captures.pop(name, None)  # it is not what the last call gave
        elif debugger.calls == "all":
            captures = window.captures.setdefault(name, {})
            captures[call] = result
            if not window.forwards and len(captures) > MAX_CALLS_OF_A_PART:
                del captures[min(captures)]
        elif is_last:
            window.captures[name] = {call: result}

    def _await_gradient(
        self,
        window: Window,
        name: str,
        debugger: BackwardDebugger,
        guarded: Callable[[Any], Snapshot | str],
        call: int,
        output: Any,
    ) -> None:
        tensors = [t for t in tensors_in(output) if t.requires_grad]
        if not tensors:
            window.reasons[name] = "its output needs no gradient (no_grad, or nothing trainable before it)"
            return
        window.reasons[name] = "no gradient had arrived when the debugger was called; call it after loss.backward()"

        def arrived(grad_output: Any) -> None:
            if not window.closed and not self._guard.muted(name):
                self._keep(window, name, debugger, call, guarded(grad_output))

        if isinstance(output, torch.Tensor):
            # arrived returns None: the gradient passes unchanged
            window.handles.append(output.register_hook(_unsaved(arrived)))  # type: ignore[no-untyped-call]
            return
        ids = {id(t): k for k, t in enumerate(tensors)}
        places = apply_tensor_op(lambda t: _Place(ids.get(id(t))), output)
        hook = torch.autograd.graph.register_multi_grad_hook(tensors, lambda grads: arrived(_fill(places, grads)))
        window.handles.append(hook)
        for tensor in tensors:
            _unsaved(next(reversed((tensor._backward_hooks or {}).values())))

    def take(self) -> tuple[dict[str, Snapshot], dict[str, dict[str, Any]]]:
        """What this thread's last forward gave, and the notes: absent (with the reason), failures, calls."""
        thread = self._thread
        window = thread.window
        if window is not None and window.forwards == 1 and window.attached == self._attached:
            once, names = window.once, self._names
            if len(once) == len(names):  # as usual: each layer was called once
                thread.window = None
                window.closed = True
                return once if [*once] == names else {name: once[name] for name in names}, {}
        window = self._forget()
        if window is None:
            unseen = _NOT_CALLED if self._model_called else _NEVER_CALLED
            window = Window(self._attached, 0)
        else:
            unseen = _NOT_RUN if window.once or window.calls else _NONE_RAN
        once = window.once
        outputs: dict[str, Snapshot] = {}
        for name, debugger in self._debuggers.items():
            captures = {1: once[name]} if name in once else window.captures.get(name)
            if captures is not None:
                (outputs[name],) = captures.values() if debugger.calls == "last" else (_joined(captures),)
        notes: dict[str, dict[str, Any]] = {}
        absent = {
            n: self._guard.muted(n) or window.reasons.get(n) or (FUSED if self._fused(n, window) else unseen)
            for n in self._debuggers
            if n not in outputs and n not in window.failures
        }
        calls = {n: c for n, c in window.calls.items() if c > 1}
        forwards = {"model": window.forwards} if window.forwards > 1 else {}  # of which the last is kept
        for kind, found in (
            ("absent", absent), ("failures", window.failures), ("calls", calls), ("forwards", forwards)
        ):  # fmt: skip
            if found:
                notes[kind] = found
        return outputs, notes

    def _fused(self, name: str, window: Window) -> bool:
        """Whether it was torch's fused kernel that left a layer out of this forward."""
        around = self._around.get(name)
        if around is None or around.training or not window.forwards:
            return False
        return torch.backends.mha.get_fastpath_enabled()

    def nothing_ran(self, notes: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether no watched layer was seen at all: most likely no hook could fire."""
        absent = notes.get("absent", {})
        return bool(self._debuggers) and all(absent.get(n) in _UNSEEN for n in self._debuggers)


_NOT_RUN = "the layer did not run in this forward (on this thread)"
_NONE_RAN = "no watched layer ran in this forward (on this thread; compiled code calls no hooks)"
_NOT_CALLED = "the model was not called since the last datapoint (on this thread, outside compiled functions)"
_NEVER_CALLED = (
    "no hook has fired: the model was not called, or was compiled inside a function before the debugger was enabled"
)
FUSED = (
    "torch computed the nn.TransformerEncoderLayer around it in one fused kernel, without calling this layer; "
    "torch.backends.mha.set_fastpath_enabled(False) makes it call its layers, and can change last bits of its output"
)
_UNSEEN = (_NONE_RAN, _NOT_CALLED, _NEVER_CALLED)


class _Place:
    """Where a gradient belongs in the structure of a layer's output."""

    def __init__(self, at: int | None) -> None:
        self.at = at


def _fill(places: Any, grads: Sequence[torch.Tensor | None]) -> Any:
    if isinstance(places, _Place):
        return None if places.at is None else grads[places.at]
    if isinstance(places, dict):
        return {k: _fill(v, grads) for k, v in places.items()}
    if isinstance(places, (list, tuple)):
        return (
            tuple(_fill(v, grads) for v in places) if isinstance(places, tuple) else [_fill(v, grads) for v in places]
        )
    fields = getattr(places, "_fields", None)
    return _fill(fields, grads) if isinstance(fields, dict) else places


def _joined(captures: dict[int, Snapshot]) -> Snapshot:
    return Snapshot.joined([captures[k] for k in sorted(captures)])


def _fused(root: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
    """The modules that torch may compute in one fused kernel, each with the layer that does so. It does not where one
    of them has a hook, which is why ours must not be found there."""
    found: dict[torch.nn.Module, torch.nn.Module] = {}
    for layer in root.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer):
            parts = list(layer.modules())
            if not any(m._forward_hooks or m._forward_pre_hooks for m in parts):
                found.update(dict.fromkeys(parts, layer))
    return found


def _unsaved(hook: Any) -> Any:
    """Let ``torch.save`` of the tensor pass over this hook without a warning."""
    hook.__torch_unserializable__ = True
    return hook


def _calls_itself(module: torch.nn.Module) -> bool:
    """Whether this call of a module was made inside another call of it. Asked of the stack, which an exception or an
    interrupt leaves in order, as it would not leave a counter."""
    calls = 0
    frame = sys._getframe(1)
    while frame is not None and calls < 2:
        if frame.f_code is _CALL and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1


_CALL = torch.nn.Module._call_impl.__code__
