"""RunFolder: the files that describe a run, also with a faulty disk."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runners.training import config, evaluation

from endoscope.errors import ConfigError
from endoscope.pages.folders import ensure_folder
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state import run_folder
from endoscope.runners.state.run_folder import RunFolder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_from_beginning_to_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, job="train")
    assert folder.earlier().status is None
    folder.begin({"seed": 7}, {"epochs": 3})
    run = read(tmp_path / "run.json")
    assert (run["status"], run["attempts"], run["seed"], run["pid"]) == ("running", 1, 7, os.getpid())
    assert read(tmp_path / "config.json") == {"epochs": 3}
    folder.end("failed", "why")
    run = read(tmp_path / "run.json")
    assert (run["status"], run["error"]) == (folder.earlier().status, "why") == ("failed", "why")
    again = RunFolder(tmp_path, job="train")
    again.begin({}, {})
    assert read(tmp_path / "run.json")["attempts"] == 2
    assert read(tmp_path / "run.json")["started"] == run["started"]


def test_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / "epoch_3").mkdir()
    for path in (tmp_path / ".run.json.77", tmp_path / "epoch_3" / ".checkpoint.pt.77"):
        path.touch()
    RunFolder(tmp_path, job="train").begin({}, {})
    assert not list(tmp_path.rglob(".*"))


def test_epochs_that_are_computed_again_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, job="train")
    for epoch in range(4):
        folder.epoch_done(epoch=epoch)
    after = RunFolder(tmp_path, job="train")
    after.resume(2)
    after.epoch_done(epoch=2)
    assert [e["epoch"] for e in read(tmp_path / "progress.json")["epochs"]] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"epochs": [7, {}, {"epoch": 0}]}', b"\xff"])
def test_an_unreadable_progress_file_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(content)
    folder = RunFolder(tmp_path, job="train")
    folder.resume(1)
    folder.epoch_done(epoch=1)
    assert read(tmp_path / "progress.json")["epochs"][-1] == {"epoch": 1}


def test_where_it_is_is_said_now_and_then_and_not_after_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path, job="train")
    folder.alive(stage="training")
    assert not (tmp_path / "progress.json").exists()
    monkeypatch.setattr(run_folder, "BEAT_S", -1.0)
    folder.alive(stage="training")
    assert read(tmp_path / "progress.json")["now"] == {"stage": "training"}
    folder.epoch_done(epoch=0)
    assert "now" not in read(tmp_path / "progress.json")


def test_a_full_disk_does_not_stop_a_run_between_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder, "BEAT_S", -1.0)
    monkeypatch.setattr(run_folder, "write_json", full)
    with caplog.at_level(logging.WARNING, "endoscope"):
        RunFolder(tmp_path, job="train").alive(stage="training")
    assert "No space left on device" in caplog.text


def test_names_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "mit Leerzeichen" / "ü…日"
    ensure_folder(path, "work_dir")
    ensure_folder(path, "work_dir")
    RunFolder(path, job="eval").begin({"class_names": ["größe"]}, {"work_dir": str(path)})
    assert read(path / "run.json")["class_names"] == ["größe"]
    assert read(path / "config.json")["work_dir"] == str(path)


def test_a_folder_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"^work_dir: cannot make the folder '.*file"):
            ensure_folder(path, "work_dir")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(ConfigError, match=r"^work_dir: cannot write into"):
        ensure_folder(tmp_path, "work_dir")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": "endoscope-run", "version": 2}', "it has version 2, this Endoscope reads 1; upgrade Endoscope"),
        (b"{", "it is not JSON"),
        (b'{"job": "train"}', "its format is not 'endoscope-run'"),
    ],
)
@pytest.mark.parametrize("job", ["train", "eval"])
def test_a_run_that_cannot_be_understood_is_left_alone(job: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^work_dir: '.*run.json' cannot be used: {message}"):
        SupervisedTrainer(config(tmp_path)) if job == "train" else SupervisedEvaluator(evaluation(tmp_path))
    assert (tmp_path / "run.json").read_bytes() == content


def test_an_invalid_field_is_ignored(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, epochs=1)).run()
    for wrong in (None, "many"):
        about = read(tmp_path / "run.json")
        (tmp_path / "run.json").write_text(json.dumps({**about, "checkpoint_epochs": wrong}))
        assert SupervisedTrainer(config(tmp_path, epochs=2)).epoch == 1


def test_a_folder_that_may_be_written_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.R_OK)  # root may read anything
    with pytest.raises(ConfigError, match=r"^work_dir: cannot read '.*'; choose another"):
        SupervisedTrainer(config(tmp_path))


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = SupervisedTrainer(config(Path("runs/a"), epochs=1))
    monkeypatch.chdir(elsewhere)
    trainer.run()
    assert (tmp_path / "runs" / "a" / "epoch_0" / "checkpoint.pt").exists()
    assert os.listdir(elsewhere) == []
