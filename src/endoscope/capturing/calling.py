"""How the inputs of a datapoint are passed to a model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch


def call_model(model: torch.nn.Module, inputs: Any, *, signature_of: torch.nn.Module | None = None) -> Any:
    """Call a model: with a mapping by name if its keys fit, with the items of a list or tuple one by one unless
    ``forward`` takes one argument, and with anything else as it is.

    ``signature_of`` is the module whose ``forward`` decides what fits, if ``model`` is a wrapper around it.
    """
    forward = (signature_of or model).forward
    if isinstance(inputs, Mapping) and _fits_by_name(forward, inputs):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)) and _takes_several(forward):
        return model(*inputs)
    return model(inputs)


def _fits_by_name(forward: Callable[..., Any], inputs: Mapping[Any, Any]) -> bool:
    if not all(isinstance(k, str) and k.isidentifier() for k in inputs):
        return False
    try:
        inspect.signature(forward).bind(**inputs)
    except TypeError:
        return False
    return True


def _takes_several(forward: Callable[..., Any]) -> bool:
    kinds = [p.kind for p in inspect.signature(forward).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) != 1
