from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.api import Viewer

from endoscope.viewer import library


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    runs.training(folder / "digits")
    return folder


@pytest.fixture
def viewer(root: Path) -> Viewer:
    return Viewer(root)


@pytest.fixture
def two(tmp_path: Path) -> Viewer:
    runs.training(tmp_path / "a")
    runs.evaluation(tmp_path / "b")
    return Viewer(tmp_path)


@pytest.fixture
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that appear are found at the next request."""
    monkeypatch.setattr(library, "_SEARCH_INTERVAL_S", 0.0)
    monkeypatch.setattr(library, "_SEARCH_SHARE", 0)


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
