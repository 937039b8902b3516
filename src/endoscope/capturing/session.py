"""Session: attaches functions to the layers of a model, and returns what they computed for each forward.

A pre-hook of the root module opens a window, hooks of the layers fill it, and `Session.take` closes it. A window
belongs to one thread, so that several threads may call the model at once. Nothing of an earlier forward is returned.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from endoscope.capturing.fused import fused_layers
from endoscope.capturing.gradients import await_gradient
from endoscope.capturing.guard import Guard
from endoscope.capturing.hooks import HookSet
from endoscope.capturing.notes import Absence, Notes, Reason
from endoscope.capturing.snapshot import Snapshot
from endoscope.capturing.window import Attachment, Window
from endoscope.errors import ConfigError
from endoscope.layers import get_layer_by_name, unwrap
from endoscope.torch_private import in_backward


class _Thread(threading.local):
    window: Window | None = None
    paused = False


class Session:
    """Attaches functions to a model's layers, and collects what they return."""

    def __init__(self, model: torch.nn.Module, guard: Guard) -> None:
        self._model = model
        self._guard = guard
        self._attachments: Sequence[Attachment] = ()
        self._hooks = HookSet()
        self._thread = _Thread()
        self._attached = 0
        self._model_called = False
        self._fused: dict[str, torch.nn.Module] = {}  # layers inside an encoder layer, with that encoder layer

    # ---- hooks
    def attach(self, attachments: Sequence[Attachment], notify_compiled: Callable[[], None]) -> None:
        """Register the hooks. ``notify_compiled`` is called when compiled parts of the model run uncompiled."""
        self._attachments = attachments
        if not attachments:
            return
        with contextlib.ExitStack() as undo:
            undo.callback(self._hooks.remove)
            self._attach(notify_compiled)
            undo.pop_all()

    def _attach(self, notify_compiled: Callable[[], None]) -> None:
        by_layer: dict[torch.nn.Module, list[Attachment]] = {}
        for attachment in self._attachments:  # layers are looked up now, because the user may have replaced one
            by_layer.setdefault(get_layer_by_name(self._model, attachment.layer_name), []).append(attachment)
        self._hooks.run_eagerly(self._model, notify_compiled)  # before the hidden hooks, which use the same attribute
        root = unwrap(self._model)
        # Hidden hooks are called after Ctrl-C, registered ones are not. DataParallel's replicas would share them.
        hidden = not isinstance(self._model, torch.nn.DataParallel)
        fused = fused_layers(root) if hidden else {}
        self._hooks.before_forward(root, self._begin, hidden=hidden)
        self._hooks.forward(root, self._end, hidden=hidden, always=True)
        self._fused = {}
        for layer, attachments in by_layer.items():
            if fused.get(layer, layer) is not layer:
                self._fused.update((a.name, fused[layer]) for a in attachments)
            hook = partial(self._layer_ran, self._attached, attachments)
            try:
                self._hooks.forward(layer, hook, hidden=layer in fused)
            except RuntimeError as e:
                raise ConfigError(f"layer {attachments[0].layer_name!r} takes no hook: {e}") from e

    def remove(self) -> None:
        """Remove the hooks and forget the captures."""
        self._hooks.remove()
        self._attached += 1
        self._forget()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside this block a debugger calls the model, not the user: nothing is captured."""
        thread = self._thread
        before = thread.paused, thread.window
        thread.paused, thread.window = True, None
        try:
            yield
        finally:
            thread.paused, thread.window = before

    # ---- during a forward
    def _begin(self, module: torch.nn.Module, input: Any) -> None:
        if self._thread.paused or in_backward():  # activation checkpointing computes a forward again in the backward
            return
        window = self._thread.window
        if window is None or not window.depth or window.attached != self._attached:
            previous = self._forget()
            forwards = 1 if previous is None else previous.forwards + 1
            window = self._thread.window = Window(self._attached, forwards)
            self._model_called = True
        window.depth += 1

    def _end(self, module: torch.nn.Module, input: Any, output: Any) -> None:
        window = self._thread.window
        if window is not None and window.depth and not in_backward():
            window.depth -= 1

    def _layer_ran(
        self, attached: int, attachments: Sequence[Attachment], module: torch.nn.Module, input: Any, output: Any
    ) -> None:
        again = in_backward()
        window = self._thread.window
        if window is None or window.attached != attached:
            if again or self._thread.paused:
                return
            window = self._thread.window = Window(attached, 0)  # the user called a part of the model by itself
        for attachment in attachments:
            name = attachment.name
            if attachment.when == "backward":
                call = max(window.calls.get(name, 0), 1) if again else window.count(name)
                self._watch_gradient(window, attachment, call, module, output)
            elif not again:
                self._call(window, attachment, window.count(name), module, input, output)

    def _call(self, window: Window, attachment: Attachment, call: int, *args: Any) -> None:
        name, guard = attachment.name, self._guard
        if guard.muted(name) is None:
            window.add(attachment, call, guard.call(name, attachment.function, *args, draws=attachment.draws))

    def _watch_gradient(
        self, window: Window, attachment: Attachment, call: int, module: torch.nn.Module, output: Any
    ) -> None:
        def arrived(gradient: Any) -> None:  # returns None, so that the gradient passes unchanged
            if not window.closed:
                self._call(window, attachment, call, module, gradient)

        name = attachment.name
        try:
            handle = await_gradient(output, arrived)
        except Exception as e:  # noqa: BLE001  # an output that cannot be walked must not stop the forward
            window.failures[name] = self._guard.failed(name, e)
            return
        window.reasons[name] = Reason.NEEDS_NO_GRADIENT if handle is None else Reason.NO_GRADIENT
        if handle is not None:
            window.handles.append(handle)

    # ---- after a forward
    def take(self) -> tuple[dict[str, Snapshot], Notes]:
        """The outputs of this thread's last forward by debugger, and the notes about them."""
        window = self._forget()
        if window is None:
            window = Window(self._attached, 0)
            unseen = Reason.NOT_CALLED if self._model_called else Reason.NEVER_CALLED
        else:
            unseen = Reason.NOT_RUN if window.calls else Reason.NONE_RAN
        captured = {a.name: window.output(a) for a in self._attachments}
        outputs = {name: output for name, output in captured.items() if output is not None}
        missing = captured.keys() - outputs.keys() - window.failures.keys()
        absent = {name: self._absence(name, window, unseen) for name in captured if name in missing}
        return outputs, Notes(absent, window.failures, window.calls, window.forwards)

    def _absence(self, name: str, window: Window, unseen: Reason) -> Absence:
        if (muted := self._guard.muted(name)) is not None:
            return muted
        reason = window.reasons.get(name)
        return Absence(reason or (Reason.FUSED if self._was_fused(name, window) else unseen))

    def _forget(self) -> Window | None:
        window, self._thread.window = self._thread.window, None
        if window is None:
            return None
        window.close()
        return window if window.attached == self._attached else None

    def _was_fused(self, name: str, window: Window) -> bool:
        """Whether a fused kernel was the reason that a layer did not run in this forward."""
        around = self._fused.get(name)
        if around is None or around.training or not window.forwards:
            return False
        return torch.backends.mha.get_fastpath_enabled()
