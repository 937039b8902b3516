"""Which epochs of a run are checkpoint epochs."""

from __future__ import annotations

from typing import Literal

from endoscope.errors import ConfigError

CheckpointMethod = int | Literal["all", "latest"]
"""Every n-th epoch and the last, all epochs, or only the last."""


def checkpoint_epochs(method: CheckpointMethod, epochs: int) -> list[int]:
    """The checkpoint epochs, in order: their checkpoints are kept and the debugger runs in their validation.

    >>> checkpoint_epochs(5, 12)
    [4, 9, 11]
    >>> checkpoint_epochs("all", 3), checkpoint_epochs("latest", 3)
    ([0, 1, 2], [2])
    """
    if method == "all":
        return list(range(epochs))
    if method == "latest":
        return [epochs - 1]
    if isinstance(method, bool) or not isinstance(method, int) or method < 1:
        raise ConfigError(f"checkpoint_method={method!r}; expected a number of epochs above 0, 'all' or 'latest'")
    return sorted({*range(method - 1, epochs, method), epochs - 1})
