"""BaseDebugger: a debugger that is called with the whole datapoint after the forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch

from endoscope.errors import ConfigError

Calls = Literal["last", "all"]
"""What is kept of a layer that runs several times in one forward."""


def checked_calls(calls: Calls) -> Calls:
    if calls not in ("last", "all"):
        raise ConfigError(f"calls={calls!r} is not a choice; choose 'last' or 'all'")
    return calls


class BaseDebugger(ABC):
    """Look at a datapoint (inputs, labels, outputs, meta_info) and the model, and return what was seen.

    >>> class Confidence(BaseDebugger):
    ...     def __call__(self, datapoint, model):
    ...         return {"confidence": datapoint["outputs"].softmax(-1).amax(-1)}

    A subclass needs no ``super().__init__()``. What it returns is copied; tensors whose first dimension is the batch
    are handed out per datapoint by the reader (see `endoscope.per_datapoint` and `endoscope.whole_batch`).
    """

    uses_random: ClassVar[bool] = False
    """True for a debugger that draws from ``random`` or ``numpy.random``: their states are then restored after each
    call. Torch's generators are always restored."""

    @abstractmethod
    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        """Return a nested value of tensors, numbers and text for this datapoint, or for this batch."""
