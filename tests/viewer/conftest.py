from __future__ import annotations

import os
from typing import Any

import pytest

from endoscope.viewer import library


@pytest.fixture
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that appear are found at the next request."""
    monkeypatch.setattr(library, "_LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(library, "_LOOK_SHARE", 0)


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `os.open` is asked for."""
    opened: list[object] = []
    real = os.open

    def watched(path: Any, *args: Any, **more: Any) -> int:
        opened.append(path)
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", watched)
    return opened
