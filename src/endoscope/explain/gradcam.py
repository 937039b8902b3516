"""Grad-CAM: where a layer found evidence for a class (Selvaraju et al., https://arxiv.org/abs/1610.02391).

Runs on the thread that calls it, for about the time of one forward: only what follows the layer is differentiated.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from endoscope.capturing.calling import call_model
from endoscope.capturing.undisturbed import undisturbed
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.layers import get_layer_by_name, unwrap
from endoscope.statistics import channel_dim
from endoscope.values import first_tensor, is_namedtuple, tensors_in

MAX_PREFIX_TOKENS = 8
"""The most tokens (class token, registers) that may precede the tokens of the image."""

Target = int | list[int] | tuple[int, ...] | Tensor | None
"""A class for all datapoints, one per datapoint, or None for the class with the highest score."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClassActivationMap:
    """A Grad-CAM of a batch."""

    cam: Tensor
    """(B, H, W), or (B, D, H, W) for volumes, (B, L) for sequences; float32, not negative, not normalised."""
    target_class: list[int]
    """The class that is explained, per datapoint."""


class GradCAM:
    """Grad-CAM of one layer of a model.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> tuple(GradCAM(net, "1").generate_cam(torch.zeros(2, 3, 6, 6), target_class=7).shape)
    (2, 4, 4)

    The model runs in its present mode: call ``model.eval()`` first for a map without dropout. The forward leaves no
    trace, and most hooks do not run unless ``run_hooks``; see `undisturbed`. Works under ``no_grad`` and
    ``inference_mode``, and with models inside DDP or ``torch.compile``.

    Inputs are passed to the model as by `call_model`. The score is the output, its ``logits``, its only tensor, or its
    first tensor of shape (B, C); further dimensions are summed; a single score (regression) is explained itself.
    A layer of tokens (B, N, C) gives a square grid, without the class token and registers. If the layer runs several
    times, the last run counts.
    """

    def __init__(self, model: nn.Module, target_layer: str | nn.Module, *, run_hooks: bool = False) -> None:
        self.model = unwrap(model)
        if isinstance(target_layer, str):
            self.layer = get_layer_by_name(model, target_layer)
            self.layer_name = target_layer
        else:
            self.layer = unwrap(target_layer)
            self.layer_name = type(target_layer).__name__
        self.run_hooks = run_hooks

    def generate_cam(self, input: Any, target_class: Target = None) -> Tensor:
        """The map alone; see `explain`."""
        return self.explain(input, target_class).cam

    def explain(self, input: Any, target_class: Target = None) -> ClassActivationMap:
        """The map of each datapoint. ``target_class``: one class, one per datapoint, or None for the highest score."""
        leaf: Tensor | None = None

        def begin_graph(module: nn.Module, args: Any, output: Any) -> Any:
            nonlocal leaf
            activation = first_tensor(output)
            if activation is None or not activation.is_floating_point():
                what = "no tensor" if activation is None else f"{activation.dtype} values"
                raise ConfigError(f"layer {self.layer_name!r} gives {what}; Grad-CAM needs floating-point activations")
            # Copied twice: the next layer may write into its input, and this layer may return its own input.
            leaf = activation.detach().clone().requires_grad_()
            torch.set_grad_enabled(True)
            return _replace(output, activation, leaf.clone())

        with undisturbed(self.model, run_hooks=self.run_hooks) as twin:
            twin.add_forward_hook(self.layer, begin_graph)
            output = call_model(twin.model, _usable(input))
            if leaf is None:
                raise EndoscopeError(f"layer {self.layer_name!r} did not run in this forward; choose one that does")
            scores = output if isinstance(output, Tensor) else _find_scores(output)
            scores = _by_class(scores, len(leaf) if leaf.ndim else 1, self.layer_name)
            targets = _targets(target_class, scores)
            chosen = scores[torch.arange(len(targets)), targets]
            gradient = self._gradient(chosen, leaf)
            torch.set_grad_enabled(False)
            return ClassActivationMap(self._cam(leaf.detach(), gradient), targets)

    def _gradient(self, chosen: Tensor, leaf: Tensor) -> Tensor:
        if chosen.requires_grad:
            (gradient,) = torch.autograd.grad(chosen, leaf, torch.ones_like(chosen), allow_unused=True)
            if gradient is not None:
                return gradient
        raise EndoscopeError(
            f"the output of layer {self.layer_name!r} does not influence the score; choose a layer that the score is "
            "computed from, and that is not followed by torch.no_grad(), detach() or an operation without gradient"
        )

    def _cam(self, activation: Tensor, gradient: Tensor) -> Tensor:
        dim = channel_dim(self.layer, activation)
        if dim is None:
            raise ConfigError(
                f"layer {self.layer_name!r} gives the shape {tuple(activation.shape)}, without positions to map; "
                "choose a layer before pooling and flattening"
            )
        if dim != 1:
            prefix, side = self._token_grid(activation.shape[1])
            if prefix and not gradient[:, prefix:].any() and gradient[:, :prefix].any():
                raise ConfigError(
                    f"only the class token of layer {self.layer_name!r} reaches the score, so all positions look "
                    "alike; choose a layer before the last attention, such as the norm in front of it"
                )
            activation, gradient = (
                t[:, prefix:].transpose(1, 2).reshape(len(t), -1, side, side) for t in (activation, gradient)
            )
        if activation.dtype is not torch.float64:
            activation, gradient = activation.float(), gradient.float()
        weights = gradient.mean(tuple(range(2, gradient.ndim)), keepdim=True)
        return (weights * activation).sum(1).relu().float()

    def _token_grid(self, tokens: int) -> tuple[int, int]:
        """How many tokens precede those of the image, and the side of the square that the latter make."""
        for prefix in range(min(MAX_PREFIX_TOKENS + 1, tokens)):
            side = math.isqrt(tokens - prefix)
            if side * side == tokens - prefix:
                return prefix, side
        raise ConfigError(
            f"the {tokens} tokens of layer {self.layer_name!r} do not make a square, even without up to "
            f"{MAX_PREFIX_TOKENS} leading ones; Grad-CAM maps tokens only to square grids"
        )


def _usable(inputs: Any) -> Any:
    """Inputs that autograd can save: tensors made in inference mode are copied."""
    for tensor in list(tensors_in(inputs)):
        if tensor.is_inference():
            inputs = _replace(inputs, tensor, tensor.clone())
    return inputs


def _replace(value: Any, old: Tensor, new: Tensor) -> Any:
    """``value`` with ``new`` in place of the tensor ``old``. Containers are rebuilt, never changed."""
    if value is old:
        return new
    if isinstance(value, (list, tuple)):
        items = [_replace(v, old, new) for v in value]
        return type(value)(*items) if is_namedtuple(value) else type(value)(items)
    if isinstance(value, Mapping):
        mapping: Any = copy.copy(value)
        for k, v in value.items():
            mapping[k] = _replace(v, old, new)
        return mapping
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        instance = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(instance, field.name, _replace(getattr(value, field.name), old, new))
        return instance
    return value


def _find_scores(output: Any) -> Tensor:
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    tensors = [t for t in tensors_in(output) if t.is_floating_point()]
    candidates = tensors if len(tensors) == 1 else [t for t in tensors if t.ndim == 2]
    if candidates:
        return candidates[0]
    shapes = [tuple(t.shape) for t in tensors]
    raise EndoscopeError(
        f"no scores found in the model's output, a {type(output).__name__} with tensors of the shapes {shapes}; "
        "expected a tensor, 'logits', or a tensor of shape (batch, classes)"
    )


def _by_class(scores: Tensor, batch: int, layer_name: str) -> Tensor:
    """The scores as (B, C, ...)."""
    if scores.ndim < 2:
        if scores.numel() == batch:
            return scores.reshape(batch, 1)
        if batch == 1:
            return scores.reshape(1, -1)
    if scores.ndim < 2 or len(scores) != batch:
        raise EndoscopeError(
            f"the scores have the shape {tuple(scores.shape)}, but layer {layer_name!r} gives {batch} rows; "
            "Grad-CAM needs a layer whose first dimension is the batch"
        )
    return scores


def _targets(target_class: Target, scores: Tensor) -> list[int]:
    batch, classes = scores.shape[:2]
    if target_class is None:
        best: list[int] = scores.detach().reshape(batch, classes, -1).sum(2).argmax(1).tolist()
        return best
    query: Any = target_class.tolist() if isinstance(target_class, Tensor) else target_class
    try:
        targets = [operator.index(t) for t in (query if isinstance(query, (list, tuple)) else [query] * batch)]
    except TypeError:
        expected = "it must be a class index, or a list of one per datapoint"
        raise ConfigError(f"target_class is {target_class!r}; {expected}") from None
    if len(targets) != batch:
        raise ConfigError(f"target_class names {len(targets)} classes for a batch of {batch}")
    for target in targets:
        if not 0 <= target < classes:
            raise ConfigError(f"target_class is {target}, but the model scores {classes} classes, 0 to {classes - 1}")
    return targets
