"""run.json: every field is valid, or left out and reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from endoscope.runs.about import About, read_about
from endoscope.runs.files import Files

from .folders import RUN

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def read(folder: Path, about: Any) -> tuple[About | None, list[str]]:
    (folder / "run.json").write_text(json.dumps(about))
    files = Files(folder)
    return files.read("run.json", read_about), [p.removeprefix("run.json: ") for p in files.problems]


def test_every_field_is_read(tmp_path: Path) -> None:
    about, problems = read(tmp_path, RUN)
    assert about is not None and not problems
    assert (about.job, about.status, about.error) == ("train", "finished", None)
    assert (about.started, about.attempts, about.pid, about.seed) == (NOON, 2, 17, 7)
    assert (about.command, about.world_size) == (("endoscope", "train", "config.py"), 1)
    assert (about.epochs, about.checkpoint_epochs) == (2, (1,))
    assert (about.class_names, about.directions) == (("red", "grün"), RUN["directions"])
    assert about.details == RUN


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ([], "its format is not 'endoscope-run'"),
        ({**RUN, "format": "other"}, "its format is not 'endoscope-run'"),
        ({**RUN, "version": 2}, "it has version 2, this Endoscope reads 1; upgrade Endoscope"),
        ({**RUN, "version": "1"}, "its version is '1'; expected 1"),
        ({**RUN, "version": True}, "its version is True; expected 1"),
    ],
)
def test_files_that_are_not_a_run_json(about: Any, problem: str, tmp_path: Path) -> None:
    assert read(tmp_path, about) == (None, [problem])


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("job", "walk", "'walk'; expected one of 'train', 'eval'"),
        ("job", ["train"], "a list; expected one of 'train', 'eval'"),
        ("status", "died", "'died'; expected one of 'running', 'finished', 'interrupted', 'failed'"),
        ("error", 5, "5; expected a string"),
        ("started", "yesterday", "'yesterday'; expected a time like 2024-02-29T12:00:00+00:00"),
        ("started", 1e308, "1e+308; expected a time like 2024-02-29T12:00:00+00:00"),
        ("started", "0001-01-01T00:00:00+14:00", "'0001-01-01T00:00:00+14:00'; expected a time like"),
        ("updated", float("nan"), "nan; expected a time like 2024-02-29T12:00:00+00:00"),
        ("attempts", -1, "-1; expected a whole number, 0 or more"),
        ("attempts", True, "True; expected a whole number, 0 or more"),
        ("pid", 10**30, f"{10**30}; expected a whole number, 0 or more"),
        ("pid", 10**300, f"{str(10**300)[:44]}; expected a whole number, 0 or more"),
        ("epochs", float("nan"), "nan; expected a whole number, 0 or more"),
        ("epochs", [[[]]], "a list; expected a whole number, 0 or more"),
        ("checkpoint_epochs", [1, "2"], "a list; expected a list of whole numbers, 0 or more"),
        ("checkpoint_epochs", 3, "3; expected a list of whole numbers"),
        ("class_names", "red", "'red'; expected a list of strings"),
        ("class_names", [1], "a list; expected a list of strings"),
        ("directions", [], "a list; expected an object"),
        ("device", "x" * 1000, None),
    ],
)
def test_an_invalid_field_is_reported_and_the_others_are_read(
    key: str, value: Any, problem: str | None, tmp_path: Path
) -> None:
    about, problems = read(tmp_path, {**RUN, key: value})
    assert about is not None
    if problem is not None:
        assert not getattr(about, key)
        assert len(problems) == 1
        assert problems[0].startswith(f"{key} is {problem}")
    assert (about.world_size, about.precision) == (1, "float32")


def test_a_wrong_direction_leaves_the_others(tmp_path: Path) -> None:
    about, problems = read(tmp_path, {**RUN, "directions": {"a": "higher", "b": "up", "c": {}}})
    assert about is not None
    assert about.directions == {"a": "higher"}
    assert problems == [
        "directions.b is 'up'; expected 'higher' or 'lower'",
        "directions.c is a dict; expected 'higher' or 'lower'",
    ]


@pytest.mark.parametrize("key", ["job", "status"])
def test_required_fields(key: str, tmp_path: Path) -> None:
    about, problems = read(tmp_path, {k: v for k, v in RUN.items() if k != key})
    assert about is not None
    assert problems == [f"it has no {key!r}"]


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    about, _ = read(tmp_path, {**RUN, "started": "2024-02-29T12:00:00", "updated": "2024-02-29T14:00:00+02:00"})
    assert about is not None
    assert about.started == about.updated == NOON


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    about, problems = read(tmp_path, {**RUN, "new": {"a": [1]}})
    assert about is not None and not problems
    assert about.details["new"] == {"a": [1]}
