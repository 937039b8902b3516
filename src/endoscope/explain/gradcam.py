"""Grad-CAM: where a layer saw what speaks for a class (Selvaraju et al., https://arxiv.org/abs/1610.02391).

Owns the method and the choice of score and class; `undisturbed` owns that the forward it takes leaves no trace. Runs on
the thread that calls it, for about the time of one forward: only what comes after the layer is differentiated.
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
"""How many tokens before the image's own (class token, registers) are recognised as such."""

Target = int | list[int] | tuple[int, ...] | Tensor | None
"""A class for all datapoints, one for each, or None for the one with the highest score."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClassActivationMap:
    """A Grad-CAM of a batch."""

    cam: Tensor
    """(B, H, W), or (B, D, H, W) for volumes, (B, L) for sequences; float32, not below 0, not normalised."""
    target_class: list[int]
    """For each datapoint the class that is explained."""


class GradCAM:
    """Grad-CAM of one layer of a model.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> tuple(GradCAM(net, "1").generate_cam(torch.zeros(2, 3, 6, 6), target_class=7).shape)
    (2, 4, 4)

    The model runs in the mode it is in: call ``model.eval()`` first for a map without dropout. What the forward leaves
    as it was, and which hooks are muted unless ``run_hooks``, is said at `undisturbed`. Works under ``no_grad`` and
    ``inference_mode``. DDP and ``torch.compile`` are seen through.

    Inputs: a tensor; a mapping, given to ``forward`` by name where its keys fit; a list or tuple, given one by one
    unless ``forward`` takes one argument. The score is the output, its ``logits``, its only tensor, or the first (B, C)
    in it; scores with further dimensions are summed over those; a single score (regression) is explained itself.
    A layer of tokens (B, N, C) gives a square grid, without the class token and registers. If the layer runs several
    times, its last run counts.
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
        """The map of each datapoint for ``target_class``: one for all, one each, or None for the highest score."""
        leaf: Tensor | None = None

        def begin_graph(module: nn.Module, args: Any, output: Any) -> Any:
            nonlocal leaf
            found = first_tensor(output)
            if found is None or not found.is_floating_point():
                what = "no tensor" if found is None else f"{found.dtype} values"
                raise ConfigError(f"layer {self.layer_name!r} gives {what}; Grad-CAM needs floating-point activations")
            # Twice copied: what runs next may write into its input, and the layer's own result may be its input.
            leaf = found.detach().clone().requires_grad_()
            torch.set_grad_enabled(True)
            return _replace(output, found, leaf.clone())

        with undisturbed(self.model, run_hooks=self.run_hooks) as twin:
            twin.add_forward_hook(self.layer, begin_graph)
            output = call_model(twin.model, _usable(input))
            if leaf is None:
                raise EndoscopeError(f"layer {self.layer_name!r} did not run in this forward; choose one that does")
            scores = _by_class(_scores(output), len(leaf) if leaf.ndim else 1, self.layer_name)
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
                    f"only the class token of layer {self.layer_name!r} reaches the score, so that no position can be "
                    "told from another; choose a layer before the last attention, such as the norm in front of it"
                )
            activation, gradient = (
                t[:, prefix:].transpose(1, 2).reshape(len(t), -1, side, side) for t in (activation, gradient)
            )
        if activation.dtype is not torch.float64:
            activation, gradient = activation.float(), gradient.float()
        weights = gradient.mean(tuple(range(2, gradient.ndim)), keepdim=True)
        return (weights * activation).sum(1).relu().float()

    def _token_grid(self, tokens: int) -> tuple[int, int]:
        """How many tokens precede the image's own, and the side of the square that those make."""
        for prefix in range(min(MAX_PREFIX_TOKENS + 1, tokens)):
            side = math.isqrt(tokens - prefix)
            if side * side == tokens - prefix:
                return prefix, side
        raise ConfigError(
            f"the {tokens} tokens of layer {self.layer_name!r} make no square, even without up to {MAX_PREFIX_TOKENS} "
            "leading ones; Grad-CAM maps tokens only to square grids"
        )


def _usable(inputs: Any) -> Any:
    """Inputs that autograd may keep: those made in inference mode are copied."""
    for tensor in list(tensors_in(inputs)):
        if tensor.is_inference():
            inputs = _replace(inputs, tensor, tensor.clone())
    return inputs


def _replace(value: Any, old: Tensor, new: Tensor) -> Any:
    """``value`` with another tensor in place of ``old``; containers are rebuilt, never written into."""
    if value is old:
        return new
    if isinstance(value, (list, tuple)):
        items = [_replace(v, old, new) for v in value]
        return type(value)(*items) if is_namedtuple(value) else type(value)(items)
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for k, v in value.items():
            made[k] = _replace(v, old, new)
        return made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, _replace(getattr(value, field.name), old, new))
        return made
    return value


def _scores(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    found = [t for t in tensors_in(output) if t.is_floating_point()]
    if len(found) == 1:
        return found[0]
    for tensor in found:
        if tensor.ndim == 2:
            return tensor
    shapes = ", ".join(str(tuple(t.shape)) for t in found) or "none"
    raise EndoscopeError(
        f"no scores found in the model's output, a {type(output).__name__} with these tensors: {shapes}; "
        "expected a tensor, 'logits', or a tensor of shape (batch, classes)"
    )


def _by_class(scores: Tensor, batch: int, layer_name: str) -> Tensor:
    """(B, C, ...)."""
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
        best = scores.detach().flatten(2).mean(2) if scores.ndim > 2 else scores.detach()
        return [0] * batch if classes == 1 else best.argmax(1).tolist()
    if isinstance(target_class, Tensor):
        target_class = target_class.tolist()
    try:
        if isinstance(target_class, (list, tuple)):
            targets = [operator.index(t) for t in target_class]
        else:
            targets = [operator.index(target_class)] * batch
    except TypeError:
        expected = "it must be a class index, or a list of one for each datapoint"
        raise ConfigError(f"target_class is {target_class!r}; {expected}") from None
    if len(targets) != batch:
        raise ConfigError(f"target_class names {len(targets)} classes for a batch of {batch}")
    for target in targets:
        if not 0 <= target < classes:
            raise ConfigError(f"target_class is {target}, but the model scores {classes} classes, 0 to {classes - 1}")
    return targets
