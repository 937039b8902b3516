"""When: which epochs keep a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from endoscope.errors import ConfigError
from endoscope.schedule import checkpoint_epochs


@pytest.mark.parametrize(
    ("method", "epochs", "kept"),
    [
        ("all", 3, [0, 1, 2]),
        ("latest", 3, [2]),
        ("latest", 1, [0]),
        (1, 3, [0, 1, 2]),
        (5, 12, [4, 9, 11]),
        (5, 10, [4, 9]),
        (3, 3, [2]),
        (100, 3, [2]),
    ],
)
def test_which_epochs(method: Any, epochs: int, kept: list[int]) -> None:
    assert checkpoint_epochs(method, epochs) == kept


def test_the_last_epoch_is_always_kept_and_none_twice() -> None:
    for method in range(1, 12):
        for epochs in range(1, 25):
            kept = checkpoint_epochs(method, epochs)
            assert kept[-1] == epochs - 1
            assert kept == sorted(set(kept))


@pytest.mark.parametrize("method", [0, -1, True, 2.0, "last", None])
def test_anything_else_is_refused(method: Any) -> None:
    with pytest.raises(ConfigError, match="checkpoint_method="):
        checkpoint_epochs(method, 3)
