"""What a run's folder holds by name, size and time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.viewer import runs

from endoscope.viewer import footprint as module
from endoscope.viewer.footprint import footprint


def test_every_file_of_a_run_is_counted_and_no_other(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    ours = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.is_file()}
    runs.evaluation(folder / "eval")  # a run of its own
    (folder / "notes.txt").write_text("x")
    (folder / "epoch_1" / "notes.txt").write_text("x")
    found = footprint(folder)
    assert {name: file.bytes for name, file in found.files.items()} == {n: s.st_size for n, s in ours.items()}
    assert found.bytes == sum(about.st_size for about in ours.values())
    assert found.last_write == pytest.approx(max(about.st_mtime for about in ours.values()))
    assert found.folders == {
        "datapoints",
        *(f"epoch_{k}" for k in range(3)),
        *(f"epoch_{k}/{name}" for k in (1, 2) for name in ("outputs", "debugger")),
    }
    assert found.complete


def test_a_missing_folder_has_an_empty_footprint(tmp_path: Path) -> None:
    found = footprint(tmp_path / "nowhere")
    assert (found.bytes, found.last_write, dict(found.files)) == (0, None, {})
    assert found.stamp != footprint(runs.just_started(tmp_path / "a")).stamp


def test_links_are_passed_over(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a", epochs=1)
    before = footprint(folder)
    (folder / "debugger").symlink_to(tmp_path)
    (folder / "epoch_7").symlink_to(folder / "epoch_0")
    (folder / "epoch_0" / "checkpoint.pt").symlink_to(folder / "run.json")
    assert footprint(folder) == before


def test_looking_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.training(tmp_path / "a")
    monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    found = footprint(folder)
    assert not found.complete
    assert len(found.files) <= 10
