"""A finished training that tests of reports share, because they only read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.viewer import runs


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.training(tmp_path_factory.mktemp("trained") / "run")
