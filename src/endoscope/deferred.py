"""Deferred: small tensors that stay on their device until many of them are moved to the host in one transfer.

For losses and columns of scores, not for outputs or maps. Everything runs on the caller's thread; a `Deferred` is not
meant for several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from endoscope.errors import EndoscopeError
from endoscope.values import apply_tensor_op

T = TypeVar("T")

MOST_VALUES = 256
MOST_BYTES = 1 << 22
"""What may gather on a device before it is moved."""


class DeferredError(EndoscopeError, RuntimeError):
    """A value could not be converted; the cause is chained."""


def to_host(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start moving small tensors to the host, in one transfer per device and dtype; the returned function waits for it.

    >>> arrived = to_host([torch.ones(2), torch.tensor(3)])
    >>> arrived()
    [tensor([1., 1.]), tensor(3)]

    That function may be called on any thread. On CUDA nothing waits before that; other devices copy at once.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for k, t in enumerate(tensors):
        groups.setdefault((t.device, t.dtype), []).append(k)
    shapes = [t.shape for t in tensors]
    copies = [(group, _copy(torch.cat([tensors[k].detach().reshape(-1) for k in group]))) for group in groups.values()]

    def arrived() -> list[Tensor]:
        host: dict[int, Tensor] = {}
        for group, (values, event) in copies:
            if event is not None:
                event.synchronize()
            parts = torch.split(values, [shapes[k].numel() for k in group])
            host |= {k: part.view(shapes[k]) for k, part in zip(group, parts, strict=True)}
        return [host[k] for k in range(len(shapes))]

    return arrived


def _copy(t: Tensor) -> tuple[Tensor, Any]:
    """A copy in host memory, and on CUDA the event after which it is there."""
    if t.device.type != "cuda":
        return t.cpu(), None
    host = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True).copy_(t, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(t.device))
    return host, event


class Deferred(Generic[T]):
    """Keeps ``convert(value)`` of every value that is put, in order; ``convert`` gets the value with host tensors.

    >>> losses = Deferred(float)
    >>> losses.put(torch.tensor(0.5, requires_grad=True))
    >>> losses.values()
    [0.5]

    The first error of ``convert`` is kept and later values are dropped, until `reset`. A copy or pickle starts empty.
    """

    def __init__(self, convert: Callable[[Any], T]) -> None:
        self._convert = convert
        self.reset()

    def put(self, value: Any) -> None:
        """Copy ``value``, a tensor or any nesting of them, on its device; does not wait for it."""
        tensors: list[Tensor] = []

        def copy(t: Tensor) -> Tensor:
            tensors.append(t.detach().clone())
            return tensors[-1]

        self._values.append(apply_tensor_op(copy, value))
        self._tensors += tensors
        self._bytes += sum(t.nbytes for t in tensors)
        if len(self._values) >= MOST_VALUES or self._bytes >= MOST_BYTES:
            self._move()

    def values(self) -> list[T]:
        """Everything that was put, converted; waits for it."""
        self._move()
        self._receive()
        if (error := self._error) is not None:
            raise DeferredError(
                f"a value could not be converted ({type(error).__name__}: {error}); later values were dropped; "
                "fix the cause, then reset"
            ) from error
        return list(self._converted)

    def reset(self) -> None:
        """Forget all values and a kept error."""
        self._values: list[Any] = []
        self._tensors: list[Tensor] = []  # of these values, in order
        self._bytes = 0
        self._moving: tuple[list[Any], Callable[[], list[Tensor]]] | None = None
        self._converted: list[T] = []
        self._error: Exception | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._convert,)

    def _move(self) -> None:
        """Start a transfer. The one before, 256 values ago, has arrived by now, so that this hardly ever waits."""
        self._receive()
        self._moving = self._values, to_host(self._tensors)
        self._values, self._tensors, self._bytes = [], [], 0

    def _receive(self) -> None:
        if self._moving is None:
            return
        (values, arrived), self._moving = self._moving, None
        tensors = iter(arrived())
        try:
            for value in values if self._error is None else ():
                self._converted.append(self._convert(apply_tensor_op(lambda _: next(tensors), value)))
        except Exception as e:  # noqa: BLE001  (the convert function is the caller's)
            self._error = e
