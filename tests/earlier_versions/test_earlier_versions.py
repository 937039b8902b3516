"""Runs that earlier versions wrote open in this one, and show the same numbers, texts and pictures."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.earlier_versions.facts import facts_of

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/facts.json"))


def differences(expected: Any, found: Any, at: str = "") -> Iterator[str]:
    """Where two JSON values differ; numbers may differ in their last digits."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() - found.keys():  # a later version may say more
            yield f"{at}/{key} is missing"
        for key in expected.keys() & found.keys():
            yield from differences(expected[key], found[key], f"{at}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for k, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{at}/{k}")
    elif isinstance(expected, float) and isinstance(found, (int, float)):
        if not math.isclose(expected, found, rel_tol=1e-5, abs_tol=1e-9):
            yield f"{at}: {expected!r} became {found!r}"
    elif expected != found or type(expected) is not type(found):
        yield f"{at}: {expected!r} became {found!r}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_of_an_earlier_version_shows_the_same_numbers(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version / "runs", tmp_path / "runs")
    expected = json.loads((HERE / version / "facts.json").read_text())
    found = json.loads(json.dumps(facts_of(tmp_path / "runs")))
    assert list(differences(expected, found)) == []


def test_the_comparison_notices_a_changed_number() -> None:
    expected = json.loads((HERE / VERSIONS[0] / "facts.json").read_text())
    changed = json.loads(json.dumps(expected))
    changed["train"]["epochs"]["1"]["map"]["values"][0][-1] += 0.001
    assert len(list(differences(expected, changed))) == 1
