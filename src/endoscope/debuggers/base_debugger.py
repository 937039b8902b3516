"""BaseDebugger: a debugger that is called with the complete datapoint after the forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch

from endoscope.errors import ConfigError

Calls = Literal["last", "all"]
"""What is stored of a layer that runs several times in one forward."""


def checked_calls(calls: Calls) -> Calls:
    """``calls``, or a ConfigError if it is not one of the choices."""
    if calls not in ("last", "all"):
        raise ConfigError(f"calls={calls!r} is not a choice; choose 'last' or 'all'")
    return calls


class BaseDebugger(ABC):
    """Look at a datapoint (inputs, labels, outputs, meta_info) and the model, and return what to store.

    >>> class Confidence(BaseDebugger):
    ...     def __call__(self, datapoint, model):
    ...         return {"confidence": datapoint["outputs"].softmax(-1).amax(-1)}

    A subclass need not call ``super().__init__()``. What it returns is copied. Tensors whose first dimension is the
    batch are split by the reader, one row per datapoint (see `endoscope.per_datapoint` and `endoscope.whole_batch`).
    """

    uses_random: ClassVar[bool | None] = None
    """Which random generators are restored after each call, so that the user's training draws the same numbers.

    ``None``: torch's. ``True``: also those of ``random`` and ``numpy.random``; set it in a debugger that draws from
    them. ``False``: none, for a class that draws no random numbers. A subclass that overrides the method that is called
    (`__call__`, `process_forward`, `process_backward`) does not inherit ``False``.
    """

    @abstractmethod
    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        """Return a nested value of tensors, numbers and text for this datapoint, or for this batch."""
