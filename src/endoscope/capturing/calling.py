"""How a datapoint's inputs are given to a model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch


def call_model(model: torch.nn.Module, inputs: Any, *, signature_of: torch.nn.Module | None = None) -> Any:
    """Call a model with a tensor; with a mapping, by name where its keys fit; with a list or tuple, one by one unless
    ``forward`` takes one argument.

    ``signature_of`` is the module whose ``forward`` says what fits, where ``model`` is a wrapper round it.
    """
    forward = (signature_of or model).forward
    if isinstance(inputs, Mapping):
        if all(isinstance(k, str) and k.isidentifier() for k in inputs):
            try:
                inspect.signature(forward).bind(**inputs)
            except TypeError:
                return model(inputs)
            return model(**inputs)
    elif isinstance(inputs, (list, tuple)):
        kinds = [p.kind for p in inspect.signature(forward).parameters.values()]
        several = inspect.Parameter.VAR_POSITIONAL in kinds
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if several or sum(kind in positional for kind in kinds) != 1:
            return model(*inputs)
    return model(inputs)
