"""The list of slow tests names tests that exist, and marks these only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.slow import SLOW, is_slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("entry", SLOW)
def test_every_entry_exists(entry: str) -> None:
    file, _, test = entry.partition("::")
    path = ROOT / file
    assert path.is_dir() if file.endswith("/") else f"def {test.rpartition('::')[2]}" in path.read_text()


@pytest.mark.parametrize(
    ("nodeid", "slow"),
    [
        ("tests/a/test_x.py::test_one", True),
        ("tests/b/test_y.py::test_one", True),
        ("tests/b/test_y.py::test_one[3]", True),
        ("tests/b/test_y.py::test_one_more", False),
        ("tests/b/test_yes.py::test_one", False),
        ("tests/c/test_z.py::test_one", True),
        ("tests/ab/test_x.py::test_one", False),
    ],
)
def test_what_an_entry_covers(nodeid: str, slow: bool) -> None:
    assert is_slow(nodeid, ["tests/a/", "tests/b/test_y.py::test_one", "tests/c/test_z.py"]) == slow
