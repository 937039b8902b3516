"""Gradients of a layer's outputs: hooks on the tensors, which call a function when the gradient has arrived.

Full backward hooks on the module are not used, because they forbid an in-place operation after the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from endoscope.values import apply_tensor_op, map_value, tensors_in


def await_gradient(output: Any, arrived: Callable[[Any], None]) -> Any:
    """Call ``arrived(gradient)`` when autograd has computed the gradient of a layer's output.

    The gradient has the structure of the output, with None in place of tensors that get none. Returns the handle of the
    hook, or None if no tensor of the output needs a gradient.
    """
    tensors = [t for t in tensors_in(output) if t.requires_grad]
    if not tensors:
        return None
    if isinstance(output, torch.Tensor):
        return output.register_hook(_not_saved(arrived))  # type: ignore[no-untyped-call]
    indices = {id(t): k for k, t in enumerate(tensors)}
    places = apply_tensor_op(lambda t: _Place(indices.get(id(t))), output)
    handle = torch.autograd.graph.register_multi_grad_hook(tensors, lambda grads: arrived(_fill(places, grads)))
    for tensor in tensors:
        _not_saved(next(reversed((tensor._backward_hooks or {}).values())))
    return handle


def _not_saved(hook: Any) -> Any:
    """Let ``torch.save`` of the tensor leave this hook out without a warning."""
    hook.__torch_unserializable__ = True
    return hook


class _Place:
    """Where a gradient belongs in the structure of the output. The index is None if the tensor gets no gradient."""

    def __init__(self, index: int | None) -> None:
        self.index = index


def _fill(places: Any, grads: Sequence[torch.Tensor | None]) -> Any:
    def gradient(place: Any) -> Any:
        if not isinstance(place, _Place):
            return place
        return None if place.index is None else grads[place.index]

    return map_value(gradient, places)
