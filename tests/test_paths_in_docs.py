"""LIMITATIONS.md names tests that exist, and CONTRIBUTING.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "LIMITATIONS.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`(tests/[\w/.]+)`", TEXT)))
NAMES = sorted(set(re.findall(r"`(test_\w+\.py)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_without_a_folder_is_one_of_the_runners(name: str) -> None:
    assert [*(ROOT / "tests" / "runners").rglob(name)]


def test_paths_are_found() -> None:
    assert len(PATHS) > 20
    assert len(NAMES) > 3


def test_every_row_has_four_cells() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STEPS = re.findall(r"\*\*`([\w/]+\.py)`\*\*", CONTRIBUTING)


@pytest.mark.parametrize("path", STEPS)
def test_every_file_in_the_life_of_a_datapoint_exists(path: str) -> None:
    assert (ROOT / "src" / "endoscope" / path).is_file()


def test_the_map_names_every_folder() -> None:
    folders = {path.parent.name for path in (ROOT / "src" / "endoscope").glob("*/__init__.py")}
    assert folders
    assert {name for name in folders if f"  {name}/" not in CONTRIBUTING} <= {"commands"}  # named beside cli.py
    assert len(STEPS) >= 10
