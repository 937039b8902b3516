"""Snapshots: copies of nested values in host memory. The only place that copies a tensor.

Runs on the thread that calls the model. On CUDA the copy goes to pinned memory without waiting; `Snapshot.wait`
is what the writer thread calls before it looks at the bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from endoscope.values import (
    ATOMS,
    PLAIN,
    DataclassValue,
    EnumValue,
    Opaque,
    Summary,
    WholeBatch,
    map_value,
    opaque,
    tensor_nbytes,
    type_name,
)

_NUMBERS = frozenset((int, float, bool, type(None), Summary))


def weight(value: Any) -> int:
    """About how many bytes a captured value takes in memory: tensors, text, and something for every object.

    >>> weight({"a": torch.zeros(1000), "b": "text"})
    4462
    """
    kind = type(value)
    if kind is dict:  # first, and without a call for plain tensors: the training thread asks this of every record
        total = 200
        for k, v in value.items():
            inner = type(v)
            if inner is _Tensor and v.layout is _STRIDED:
                total += 128 + v.nbytes
            elif inner is Snapshot:
                total += 128 + (weight(v.value) if v.form is None else v.form.weight + v.value.nbytes)
            elif inner in _NUMBERS:
                total += 128
            else:
                total += 64 + weight(v)
            total += len(k) if type(k) is str else 64
        return total
    if kind is Snapshot:
        return 64 + weight(value.value) + (0 if value.form is None else value.form.weight)
    if kind is WholeBatch:
        return 64 + weight(value.value)
    if kind is torch.Tensor:
        return 64 + tensor_nbytes(value)
    if kind is str or kind is bytes:
        return 64 + len(value)
    if kind is DataclassValue:
        return 64 + weight(value._fields)
    if isinstance(value, Mapping):
        return 200 + sum(64 + weight(v) for v in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return 64 + sum(map(weight, value))
    if isinstance(value, np.ndarray):
        return 64 + value.nbytes
    if isinstance(value, torch.Tensor):
        return 64 + tensor_nbytes(value)
    return 64 + (len(value.text) if kind is Opaque else 0)


class Form:
    """A dict that has a tensor at one place and is else always the same: what a debugger returns that only keeps a
    layer's output. It is filled when it is looked at, not in a hook."""

    __slots__ = ("_filled", "_place", "weight")

    def __init__(self, filled: dict[str, Any], place: str) -> None:
        self._filled = filled
        self._place = place
        self.weight = weight(filled)

    def filled(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {**self._filled, self._place: tensor}


class Snapshot:
    """A nested value whose bytes are ours: ``value``, and ``wait()`` for copies that a device has not finished.

    With a ``form`` the ``value`` is one tensor, and what was captured is the form filled with it.
    """

    __slots__ = ("_events", "form", "value")

    def __init__(self, value: Any, events: Sequence[Any], form: Form | None = None) -> None:
        self.value = value
        self.form = form
        self._events = events

    @classmethod
    def joined(cls, parts: list[Snapshot]) -> Snapshot:
        """Several snapshots as one, whose value is the list of theirs."""
        return cls([p._whole() for p in parts], [e for p in parts for e in p._events])

    def wait(self) -> Any:
        """All that was captured, when its bytes have arrived in host memory. For the writer thread, never in a hook."""
        for event in self._events:
            event.synchronize()
        self._events = ()
        return self._whole()

    def _whole(self) -> Any:
        return self.value if self.form is None else self.form.filled(self.value)


def snapshot(value: Any) -> Snapshot:
    """Copy ``value`` once to host memory, detached, so that nothing done later to the original can change it.

    >>> t = torch.zeros(2)
    >>> s = snapshot({"a": t, "name": "conv1"})
    >>> _ = t.add_(1)
    >>> s.value
    {'a': tensor([0., 0.]), 'name': 'conv1'}

    Containers are rebuilt, dataclasses become `DataclassValue`, objects of unknown types become `Opaque`.
    On CUDA the copy is queued on the current stream into pinned memory and not waited for.
    """
    if type(value) is list and _transforms() is None and all(map(_is_small, value)):
        return Snapshot([v.detach().clone(memory_format=_CONTIGUOUS) for v in value], ())
    if _is_small(value) and _transforms() is None:
        return Snapshot(value.detach().clone(memory_format=_CONTIGUOUS), ())
    with without_gradient():
        return _copied(value)


def _is_small(v: Any) -> bool:
    """Whether `_clone` would copy it in the plainest way: losses and scores are like that, at every step of a loop.
    What has left a transform of `torch.func` is still wrapped and would be copied as garbage, or not at all."""
    if type(v) is not _Tensor or not v.is_cpu or v.layout is not _STRIDED or v.numel() >= _SPLIT_BY_TORCH:
        return False
    return not (_is_wrapped(v) or _is_functional(v))


def owned(value: Any) -> Snapshot:
    """`snapshot` inside a hook, where gradient mode is off already: with as little Python as can be, for the user's
    forward waits, and by torch's threads, which are awake there (what lies deeper is copied as `snapshot` does)."""
    if type(value) is not dict or _transforms() is not None:
        return _copied(value)
    copied = {}
    devices: set[torch.device] | None = None
    for k, v in value.items():
        kind = type(v)
        if type(k) is not str:
            return _copied(value)
        if kind is _Tensor and v.is_cpu and v.layout is _STRIDED:
            copied[k] = v.clone(memory_format=_CONTIGUOUS) if not _in_a_fork else _clone(v)
        elif kind in PLAIN:
            copied[k] = v
        else:
            devices = devices or set()
            copied[k] = map_value(partial(_own, devices), v, 1)
    made = _new(Snapshot)  # without a call of its __init__
    made.value, made.form, made._events = copied, None, [_event(d) for d in devices] if devices else ()
    return made


def owned_in(form: Form, tensor: Any) -> Snapshot | None:
    """`owned` of what ``form`` makes of a plain tensor in host memory, whether gradient mode is on or off; None for any
    other value."""
    if type(tensor) is not _Tensor or not tensor.is_cpu or tensor.layout is not _STRIDED:
        return None
    if _transforms() is not None or _in_a_fork:
        return None
    made = _new(Snapshot)
    made.form, made._events = form, ()
    gradient = _is_grad_enabled()
    try:
        if gradient:
            _set_grad_enabled(False)
        made.value = tensor.clone(memory_format=_CONTIGUOUS)
    finally:
        if gradient:
            _set_grad_enabled(True)
    return made


def _copied(value: Any) -> Snapshot:
    devices: set[torch.device] = set()
    with _no_transforms() if _transforms() is not None else contextlib.nullcontext():  # or the copies would be in them
        copied = map_value(partial(_own, devices), value, 0)
        return Snapshot(copied, [_event(d) for d in devices])


_new = object.__new__
_is_grad_enabled, _set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
_Tensor, _STRIDED, _CONTIGUOUS = torch.Tensor, torch.strided, torch.contiguous_format
_is_wrapped, _is_functional = torch._C._functorch.is_functorch_wrapped_tensor, torch._is_functional_tensor
_SPLIT_BY_TORCH = 32768  # elements from which torch uses several threads for a copy
_in_a_fork = False  # where the threads of torch are gone, and who asks for them waits for ever


def _forked() -> None:
    global _in_a_fork
    _in_a_fork = True


os.register_at_fork(after_in_child=_forked)


def _large_copy(t: torch.Tensor) -> torch.Tensor:
    """A contiguous copy made by this thread alone: torch's threads would wait for each other while the writer has a
    core, and a page then took three times as long."""
    if not t.is_contiguous() or t.is_quantized or t.is_neg() or t.is_conj() or t._is_zerotensor():
        return t.detach().clone(memory_format=_CONTIGUOUS)
    copy = torch.empty_like(t)
    ctypes.memmove(copy.data_ptr(), t.data_ptr(), copy.nbytes)
    return copy


def _own(devices: set[torch.device], v: Any) -> Any:
    """A copy of something that is no container; ``devices`` takes those whose copies are still under way."""
    if isinstance(v, torch.Tensor):
        if v.is_cpu:
            return _clone(v)
        if v.device.type == "meta":
            return opaque(v)
        copy = _copy_to_host(v)
        if v.device.type == "cuda":
            devices.add(v.device)
        return copy
    if isinstance(v, np.ndarray):
        return opaque(v) if isinstance(v, np.ma.MaskedArray) else np.array(v, order="C")
    if isinstance(v, enum.Enum):
        return EnumValue(type_name(type(v)), v.name, map_value(partial(_own, devices), v.value, 1))
    if isinstance(v, bytearray):
        return bytes(v)
    return v if isinstance(v, ATOMS) else opaque(v)


class without_gradient:  # used like torch.no_grad, at a tenth of its cost
    """Gradient mode off inside; for the hooks, where torch.no_grad() was the dearest thing we did."""

    def __enter__(self) -> None:
        self._before = _is_grad_enabled()
        if self._before:
            _set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        if _is_grad_enabled() != self._before:  # also where it was switched on inside
            _set_grad_enabled(self._before)


_transforms = torch._C._functorch.peek_interpreter_stack
"""What `torch.func` is doing on this thread, such as grad or vmap; None outside it."""


def _no_transforms() -> contextlib.AbstractContextManager[Any]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def _inner(t: torch.Tensor) -> torch.Tensor:
    """The tensor inside what `torch.func` puts around one. That of a vmap has its slices in the first dimension."""
    functorch = torch._C._functorch
    while True:
        if _is_functional(t):  # its memory is not what it says before it is synced
            torch._sync(t)  # type: ignore[attr-defined,no-untyped-call]
            t = torch._from_functional_tensor(t)
        elif functorch.is_batchedtensor(t):
            t = functorch.get_unwrapped(t).movedim(functorch.maybe_get_bdim(t), 0)
        elif _is_wrapped(t):
            t = functorch.get_unwrapped(t)
        else:
            return t


def _clone(t: torch.Tensor) -> torch.Tensor:
    t = _inner(t)
    plain = type(t) in (torch.Tensor, torch.nn.Parameter)  # a subclass may have no memory of its own
    if not plain:
        local = getattr(t, "to_local", None)  # a DTensor: this rank's shard, without talking to the others
        t = local() if local else t.as_subclass(torch.Tensor)
    if t.layout is torch.strided:
        large = plain and t.numel() >= _SPLIT_BY_TORCH
        return _large_copy(t) if large else t.detach().clone(memory_format=_CONTIGUOUS)
    if t.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return t.detach().to_dense()
    return t.detach().clone()


def _copy_to_host(t: torch.Tensor) -> torch.Tensor:
    """From a device: queued into pinned memory on CUDA (the caller records an event), waited for elsewhere."""
    t = t.detach()
    if t.device.type != "cuda" or t.layout is not torch.strided or t.is_quantized:
        return _clone(t.cpu())
    host = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
    return host.copy_(t, non_blocking=True)


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
