"""Finding runs below a folder, and reporting what was not searched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from endoscope.runs import RunNotFoundError, find, find_runs
from endoscope.runs.scores import write_scores

from .folders import SCORES, make_evaluation, make_training


def names(root: Path, **limits: Any) -> list[str]:
    return [str(run.path.relative_to(root)) for run in find_runs(root, **limits).runs]


def test_runs_are_found_also_in_runs_and_not_in_their_own_folders(tmp_path: Path) -> None:
    make_training(tmp_path / "b" / "digits")
    make_evaluation(tmp_path / "b" / "digits" / "eval")
    make_evaluation(tmp_path / "a" / "deep" / "er")
    (tmp_path / "c" / "epoch_3").mkdir(parents=True)  # a run without run.json
    (tmp_path / "d").mkdir()
    write_scores(SCORES, tmp_path / "d", split="evaluation")
    for name in ("b/digits/epoch_1/debugger", "b/digits/datapoints", "none", ".hidden"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "evaluation_scores.json").touch()
    (tmp_path / "none" / "evaluation_scores.json").unlink()
    assert names(tmp_path) == ["a/deep/er", "b/digits", "b/digits/eval", "c", "d"]
    result = find_runs(tmp_path)
    assert result.problems == ()
    assert [run.kind for run in result.runs] == ["evaluation", "training", "evaluation", "training", "evaluation"]


def test_the_folder_itself_may_be_a_run(tmp_path: Path) -> None:
    make_training(tmp_path / "run")
    assert names(tmp_path / "run") == ["."]


def test_links_are_not_followed(tmp_path: Path) -> None:
    make_training(tmp_path / "outside" / "run")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run").symlink_to(tmp_path / "outside" / "run")
    (tmp_path / "here" / "round").symlink_to(tmp_path / "here")
    assert names(tmp_path / "here") == []


def test_the_depth_is_limited(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "1" / "2" / "3")
    assert names(tmp_path, depth=3) == ["1/2/3"]
    assert find_runs(tmp_path, depth=3).problems == ()
    assert names(tmp_path, depth=2) == []
    assert find_runs(tmp_path, depth=2).problems == ("folders deeper than 2 levels that were not searched: 1",)


def test_the_number_of_runs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(5):
        make_evaluation(tmp_path / str(k))
    assert names(tmp_path, most=3) == ["0", "1", "2"]
    assert find_runs(tmp_path, most=3).problems == ("there may be more than 3 runs; only the first ones are listed",)
    monkeypatch.setattr(find, "MAX_ENTRIES", 12)
    result = find_runs(tmp_path)
    assert 0 < len(result.runs) < 5
    assert result.problems == ("there are more than 12 files and folders; the rest was not searched",)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_evaluation(tmp_path / "a")
    for k in range(12):
        (tmp_path / f"closed {k}").mkdir()
    real = os.scandir

    def refusing(path: Any) -> Any:
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(find.os, "scandir", refusing)  # root may look anywhere
    result = find_runs(tmp_path)
    assert len(result.runs) == 1
    assert len(result.problems) == 11
    assert result.problems[0] == "closed 0: Permission denied"
    assert result.problems[-1] == "2 more folders cannot be read"


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="there is no folder"):
        find_runs(tmp_path / "nowhere")
