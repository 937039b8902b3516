"""Snapshots: copies of nested values in host memory. The only place that copies a tensor.

Runs on the thread that calls the model. On CUDA the copy goes to pinned memory without blocking; the writer thread
calls `Snapshot.wait` before it reads the bytes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from endoscope.torch_private import innermost, is_mkldnn, outside_transforms
from endoscope.values import ATOMS, EnumValue, Opaque, map_value, opaque, parts_of, tensor_nbytes, type_name


class Snapshot:
    """A copied value. ``wait()`` returns it when a device has delivered all bytes, which ``value`` does not check."""

    __slots__ = ("_events", "value")

    def __init__(self, value: Any, events: Sequence[Any]) -> None:
        self.value = value
        self._events = events

    @classmethod
    def joined(cls, parts: Sequence[Snapshot]) -> Snapshot:
        """One snapshot of several, whose value is the list of their values."""
        return cls([p.value for p in parts], [e for p in parts for e in p._events])

    def wait(self) -> Any:
        """The value, when its bytes have arrived in host memory. For the writer thread, never in a hook."""
        for event in self._events:
            event.synchronize()
        self._events = ()
        return self.value

    def copy(self) -> Any:
        """A second copy of the value, for the user to keep or change. Does not block: while a device still delivers
        bytes, the tensors of the copy are on the current CUDA device."""
        events = self._events
        with torch.inference_mode(False):
            for event in events:
                torch.cuda.current_stream().wait_event(event)
            return map_value(_to_cuda if events else _copy_again, self.value)


def _to_cuda(v: Any) -> Any:
    return v.to("cuda", non_blocking=True) if isinstance(v, torch.Tensor) else _copy_again(v)


def _copy_again(v: Any) -> Any:
    """A copy of a leaf that has been copied before."""
    if isinstance(v, torch.Tensor):
        return _clone(v)
    return v.copy() if isinstance(v, np.ndarray) else v


def snapshot(value: Any) -> Snapshot:
    """Copy ``value`` once to host memory, detached, so that later changes of the original do not show.

    >>> t = torch.zeros(2)
    >>> s = snapshot({"a": t, "name": "conv1"})
    >>> _ = t.add_(1)
    >>> s.value
    {'a': tensor([0., 0.]), 'name': 'conv1'}

    Containers are rebuilt, dataclasses become `DataclassValue`, objects of unknown types become `Opaque`.
    On CUDA the copy is queued on the current stream into pinned memory.
    """
    devices: set[torch.device] = set()
    with outside_transforms():  # or the copies would belong to the transform
        copied = map_value(partial(_copy, devices), value)
        return Snapshot(copied, [_event(d) for d in devices])


def _copy(devices: set[torch.device], v: Any) -> Any:
    """A copy of a leaf. Adds the device of a copy that is still under way to ``devices``."""
    if isinstance(v, torch.Tensor):
        if v.device.type == "meta":
            return opaque(v)
        if v.device.type == "cuda":
            devices.add(v.device)
        return _host_copy(v)
    if isinstance(v, np.ndarray):
        return opaque(v) if isinstance(v, np.ma.MaskedArray) else np.array(v, order="C")
    if isinstance(v, enum.Enum):
        return EnumValue(type_name(type(v)), v.name, map_value(partial(_copy, devices), v.value))
    if isinstance(v, bytearray):
        return bytes(v)
    return v if isinstance(v, ATOMS) else opaque(v)


def _host_copy(t: torch.Tensor) -> torch.Tensor:
    t = innermost(t)
    if type(t) not in (torch.Tensor, torch.nn.Parameter):  # a subclass may have no memory of its own
        local = getattr(t, "to_local", None)  # a DTensor: the shard of this rank, without communication
        t = local() if local else t.as_subclass(torch.Tensor)
    if t.requires_grad:  # each call of torch can hand the interpreter lock to another thread
        t = t.detach()
    if t.device.type == "cuda" and t.layout is torch.strided and not t.is_quantized:
        return torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True).copy_(t, non_blocking=True)
    if not t.is_cpu:
        t = t.cpu()
    return t.to_dense() if is_mkldnn(t) else _clone(t)


def _clone(t: torch.Tensor) -> torch.Tensor:
    threads = torch.get_num_threads() if _in_a_fork else 1
    if threads > 1:  # the threads of the parent are gone; a copy that is split among them never ends
        torch.set_num_threads(1)
        try:
            return _clone(t)
        finally:
            torch.set_num_threads(threads)
    return t.clone(memory_format=torch.contiguous_format) if t.layout is torch.strided else t.clone()


_in_a_fork = False


def _forked() -> None:
    global _in_a_fork
    _in_a_fork = True


os.register_at_fork(after_in_child=_forked)


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def weight(value: Any) -> int:
    """About how many bytes a captured value takes in memory: its tensors and texts, and something for every object.

    >>> weight({"a": torch.zeros(1000), "b": "text"})
    4398
    """
    if isinstance(value, Snapshot):
        value = value.value
    if isinstance(value, torch.Tensor):
        return 64 + tensor_nbytes(value)
    if isinstance(value, np.ndarray):
        return 64 + value.nbytes
    text = value.text if isinstance(value, Opaque) else value
    if isinstance(text, (str, bytes)):
        return 64 + len(text)
    parts = parts_of(value)
    return 64 if parts is None else 200 + sum(map(weight, (*parts.hashed, *parts.values)))
