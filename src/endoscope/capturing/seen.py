"""capture(): what the layers of a model computed inside a ``with`` block, by layer name.

Hooks run on the thread that calls the model (autograd's threads for gradients) and never wait for a device. The copies
are waited for when they are looked up.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from endoscope.capturing.fused import fused_layers
from endoscope.capturing.gradients import await_gradient
from endoscope.capturing.hooks import HookSet, check_hooks
from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.errors import ConfigError, EndoscopeError, closest
from endoscope.layers import get_layer_by_name, select, unwrap
from endoscope.torch_private import in_backward
from endoscope.values import tensors_in

log = logging.getLogger("endoscope")

MAX_OPEN_CALLS = 32
"""How deep a layer may call itself before the inputs of its outermost calls are forgotten. A forward that raised leaves
one open call behind, so this also bounds what failing forwards can hold."""

MAX_ROWS = 40
"""How many layers ``repr`` lists."""


class NotCapturedError(EndoscopeError, KeyError):
    """Nothing was captured of that layer: it is not watched, did not run, or no gradient reached it."""


@contextmanager
def capture(
    model: torch.nn.Module, *patterns: str, gradients: bool = False, calls: Literal["last", "all"] = "last"
) -> Iterator[Seen]:
    """Keep what the layers of ``model`` that match ``patterns`` are given and return inside the block.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True))
    >>> with capture(model, "0", gradients=True) as seen:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> seen.outputs["0"].shape, seen.inputs["0"][0].shape, seen.gradients["0"].shape, seen.calls["0"]
    (torch.Size([2, 8]), torch.Size([2, 4]), torch.Size([2, 8]), 1)

    patterns: layer names as in `SequentialDebugger`. ``"*"`` matches every layer, ``""`` is the model itself.
    gradients: also keep the gradient of each layer's output. Call ``backward()`` inside the block.
    calls: of a layer that runs several times, keep the ``"last"`` call, or ``"all"`` of them as a list.

    Everything is a copy in host memory, made before anything else can change the original. The hooks are removed when
    the block ends, however it ends. A compiled model runs uncompiled inside the block.
    """
    layers = _watched_layers(model, patterns)
    if calls not in ("last", "all"):
        raise ConfigError(f"calls={calls!r} is not a choice; choose 'last' or 'all'")
    records: dict[torch.nn.Module, _Layer] = {}
    for layer in layers.values():
        records.setdefault(layer, _Layer(gradients=gradients, every_call=calls == "all"))
    hooks = HookSet()
    try:
        _attach(hooks, model, layers, records)
        yield Seen({name: records[layer] for name, layer in layers.items()})
    finally:
        hooks.remove()
        for record in records.values():
            record.close()


class Seen:
    """What `capture` kept, by layer name. ``print(seen)`` lists the layers, their calls and the shapes.

    outputs: what the layer returned, with its structure.
    inputs: its positional arguments as a tuple, as they were before the layer ran.
    kwargs: its keyword arguments as a dict.
    gradients: the gradient of the output in the structure of the output, None where none arrived.
    calls: how often the layer ran; 0 if it did not.

    Looking up a layer that was not captured raises `NotCapturedError`, a `KeyError` that says why.
    """

    def __init__(self, layers: Mapping[str, _Layer]) -> None:
        self.outputs = _ByLayer(layers, _Layer.outputs)
        self.inputs = _ByLayer(layers, _Layer.inputs)
        self.kwargs = _ByLayer(layers, _Layer.kwargs)
        self.gradients = _ByLayer(layers, _Layer.gradients)
        self.calls = _ByLayer(layers, lambda layer, name: layer.count)
        self._layers = layers

    def __repr__(self) -> str:
        rows = [(name or "(the model)", str(layer.count), layer.shape()) for name, layer in self._layers.items()]
        rows = [("layer", "calls", "output"), *rows]
        left_out = len(rows) - 1 - MAX_ROWS
        names, counts = (max(len(row[k]) for row in rows[: MAX_ROWS + 1]) for k in (0, 1))
        lines = [f"{name:<{names}}  {count:>{counts}}  {shape}" for name, count, shape in rows[: MAX_ROWS + 1]]
        return "\n".join(lines + ([f"... and {left_out} more layers"] if left_out > 0 else []))


class _ByLayer(Mapping[str, Any]):
    """One kind of value by layer name. Iterating gives the layers that have one."""

    def __init__(self, layers: Mapping[str, _Layer], read: Callable[[_Layer, str], Any]) -> None:
        self._layers = layers
        self._read = read

    def __getitem__(self, name: str) -> Any:
        if name not in self._layers:
            hint = closest(str(name), self._layers) or "; watched: " + ", ".join(map(repr, [*self._layers][:8]))
            raise NotCapturedError(f"layer {name!r} is not watched by this capture{hint}")
        return self._read(self._layers[name], name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._layers if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<of the layers {', '.join(map(repr, self))}>"


# ---------------------------------------------------------------- hooks
def _watched_layers(model: torch.nn.Module, patterns: tuple[str, ...]) -> dict[str, torch.nn.Module]:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    check_hooks(model)
    if not patterns:
        raise ConfigError('capture(model) names no layers; add names or patterns such as "layer4.*", or "*" for all')
    names = [name for pattern in patterns for name in select(model, pattern)]
    return {name: get_layer_by_name(model, name) for name in names}


def _attach(
    hooks: HookSet,
    model: torch.nn.Module,
    layers: Mapping[str, torch.nn.Module],
    records: Mapping[torch.nn.Module, _Layer],
) -> None:
    hooks.run_eagerly(model, _warn_once("the model is compiled: it runs uncompiled while it is captured"))
    # Replicas of DataParallel would share the hidden hooks.
    fused = {} if isinstance(model, torch.nn.DataParallel) else fused_layers(unwrap(model))
    for name, layer in layers.items():
        record = records[layer]
        if record.attached:  # a shared module, under its second name
            continue
        record.attached = True
        record.inside_fused = fused.get(layer, layer) is not layer
        try:
            hooks.before_forward(layer, record.before, hidden=layer in fused, with_kwargs=True)
            hooks.forward(layer, record.after, hidden=layer in fused)
        except RuntimeError as e:
            raise ConfigError(f"layer {name!r} takes no hook: {e}") from e


def _warn_once(message: str) -> Callable[[], None]:
    warned = False

    def warn() -> None:
        nonlocal warned
        if not warned:
            warned = True
            log.warning("%s", message)

    return warn


# ---------------------------------------------------------------- records
class _Call(NamedTuple):
    """One call of a layer. Text in the place of a snapshot says why there is none."""

    inputs: Snapshot | str
    output: Snapshot | str
    gradient: _Gradient | None


class _Layer:
    """The calls of one layer, and the hooks that record them."""

    def __init__(self, *, gradients: bool, every_call: bool) -> None:
        self.count = 0
        self.attached = self.inside_fused = False
        self._gradients = gradients
        self._every_call = every_call
        self._calls: list[_Call] = []
        self._running = threading.local()  # the inputs of calls that have begun, per thread
        self._lock = threading.Lock()

    # ---- in hooks
    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not in_backward():
            self._open_calls().append(_copied((args, kwargs)))

    def after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if in_backward():  # activation checkpointing computes the layer again
            self._recomputed(output)
            return
        running = self._open_calls()
        inputs = running.pop() if running else f"the layer called itself more than {MAX_OPEN_CALLS} levels deep"
        call = _Call(inputs, _copied(output), _Gradient(output) if self._gradients else None)
        with self._lock:
            self.count += 1
            if not self._every_call:
                self.close()
                self._calls.clear()
            self._calls.append(call)

    def _recomputed(self, output: Any) -> None:
        """Reentrant checkpointing runs the layer first without a graph: the gradient comes through this output."""
        waiting = [c.gradient for c in self._calls if c.gradient is not None and c.gradient.handle is None]
        if waiting:
            waiting[-1].expect(output)

    def _open_calls(self) -> deque[Snapshot | str]:
        if not hasattr(self._running, "calls"):
            self._running.calls = deque(maxlen=MAX_OPEN_CALLS)
        calls: deque[Snapshot | str] = self._running.calls
        return calls

    def close(self) -> None:
        """Remove the hooks on output tensors."""
        for call in self._calls:
            if call.gradient is not None:
                call.gradient.close()

    # ---- for the reader
    def outputs(self, name: str) -> Any:
        return self._each(name, lambda call: _value(call.output, f"the output of layer {name!r}"))

    def inputs(self, name: str) -> Any:
        return self._each(name, lambda call: _value(call.inputs, f"the inputs of layer {name!r}")[0])

    def kwargs(self, name: str) -> Any:
        return self._each(name, lambda call: _value(call.inputs, f"the inputs of layer {name!r}")[1])

    def gradients(self, name: str) -> Any:
        if not self._gradients:
            raise NotCapturedError("gradients were not captured; use capture(..., gradients=True)")
        self._each(name, lambda call: None)
        gradients = [call.gradient for call in self._calls if call.gradient is not None]
        if all(gradient.copy is None for gradient in gradients):
            raise NotCapturedError(f"no gradient reached the output of layer {name!r}: {gradients[-1].reason}")
        values = [g.copy if g.copy is None else _value(g.copy, f"the gradient of layer {name!r}") for g in gradients]
        return values if self._every_call else values[-1]

    def _each(self, name: str, read: Callable[[_Call], Any]) -> Any:
        if not self._calls:
            advice = _FUSED if self.inside_fused else "call the model inside the block"
            raise NotCapturedError(f"layer {name!r} did not run inside this capture; {advice}")
        values = [read(call) for call in self._calls]
        return values if self._every_call else values[-1]

    def shape(self) -> str:
        """The shape of the last output, for ``repr``; does not wait for it."""
        if not self._calls:
            return "did not run"
        output = self._calls[-1].output
        if isinstance(output, str):
            return "not copied"
        shapes = ["nested" if t.is_nested else str(list(t.shape)) for t in tensors_in(output.value)]
        more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
        return shapes[0] + more if shapes else type(output.value).__name__


_FUSED = (
    "torch may have computed the nn.TransformerEncoderLayer around it in one fused kernel, "
    "and torch.backends.mha.set_fastpath_enabled(False) makes it call its layers"
)


class _Gradient:
    """The gradient of one output, which arrives in the backward pass."""

    def __init__(self, output: Any) -> None:
        self.copy: Snapshot | str | None = None
        self.reason = ""
        self.handle: Any = None
        self.expect(output)

    def expect(self, output: Any) -> None:
        """Set the hooks on the tensors of ``output``."""

        def arrived(gradient: Any) -> None:  # returns None, so that the gradient passes on unchanged
            self.copy = _copied(gradient)

        try:
            self.handle = await_gradient(output, arrived)
        except _NOT_COPIED as e:
            self.reason = _describe(e)
            return
        if self.handle is None:
            self.reason = "its output needs no gradient (no_grad, or nothing trainable before it)"
        else:
            self.reason = "call backward() inside the block"

    def close(self) -> None:
        if self.handle is not None:
            self.handle.remove()


_NOT_COPIED = (RuntimeError, ValueError, TypeError, AttributeError, MemoryError)
"""What copying an unusual value may raise; it must not stop the forward."""


def _copied(value: Any) -> Snapshot | str:
    try:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # or the copies could not be used outside inference mode
                return snapshot(value)
        return snapshot(value)
    except _NOT_COPIED as e:
        return _describe(e)


def _describe(e: BaseException) -> str:
    return f"{type(e).__name__}: {e}"[:300]


def _value(copy: Snapshot | str, what: str) -> Any:
    if isinstance(copy, str):
        raise NotCapturedError(f"{what} could not be copied: {copy}")
    return copy.wait()
