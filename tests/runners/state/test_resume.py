"""A run that is stopped at any moment resumes and ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runners.processes import finish, start, wait_for
from tests.runners.training import VAL, canonical, config, evaluation, final, node

from endoscope import load_debug_outputs
from endoscope.errors import ConfigError
from endoscope.pages.verify import verify_folder
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state.checkpoints import CheckpointError, load_checkpoint
from endoscope.runs import atomic
from endoscope.runs.scores import read_scores


def contents(work_dir: Path) -> dict[str, Any]:
    """Everything that a run ends with, but for times and process numbers."""
    epochs = sorted(work_dir.glob("epoch_*"))
    return {
        "final": final(work_dir),
        "scores": [read_scores(e / "validation_scores.json") for e in epochs],
        "losses": [(e / "training_losses.json").read_text() for e in epochs],
        "checkpoints": [e.name for e in epochs if (e / "checkpoint.pt").exists()],
        "captured": [
            {idx: canonical(seen[idx]) for idx in seen}
            for e in epochs
            if (e / "debugger").exists()
            for seen in [load_debug_outputs(e)]
        ],
        "noted": [
            {k: v for k, v in e.items() if k not in ("train_s", "val_s")}
            for e in json.loads((work_dir / "progress.json").read_text())["epochs"]
        ],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    SupervisedTrainer(config(folder)).run()
    return contents(folder)


def assert_same(work_dir: Path, whole: dict[str, Any]) -> None:
    found = contents(work_dir)
    assert {k for k in whole if found[k] != whole[k]} == set()
    for folder in [work_dir / "datapoints", *work_dir.glob("epoch_*/debugger"), *work_dir.glob("epoch_*/outputs")]:
        assert verify_folder(folder) == []
    assert not list(work_dir.rglob(".*"))


def test_a_run_repeats(tmp_path: Path, whole: dict[str, Any]) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    assert_same(tmp_path, whole)


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The n-th file that is put into its place never is, and the process ends there."""
    placed: list[Path] = []

    def replace(source: Any, target: Any) -> None:
        placed.append(Path(target))
        if len(placed) == number + 1:
            raise Killed
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "replace", replace)
        patch.setattr(
            "endoscope.runners.state.run_folder.RunFolder.end", lambda *_: None
        )  # a killed process says nothing
        yield placed


def test_killed_at_every_file_that_is_written(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    while True:
        folder = tmp_path / str(number)
        with killed_at(number, monkeypatch) as placed, contextlib.suppress(Killed):
            SupervisedTrainer(config(folder)).run()
        if len(placed) <= number:
            break
        SupervisedTrainer(config(folder)).run()
        assert_same(folder, whole)
        number += 1
    assert number > 12  # run, config; losses, scores, progress, checkpoint of three epochs


# ---------------------------------------------------------------- real signals
@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An uninterrupted run in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(folder)
    return contents(folder)


def test_killed_at_random_moments(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    chance = random.Random(0)
    folder = tmp_path / "run"
    for _ in range(5):
        process = start(folder, pause=0.01)
        wait_for(folder / "run.json", process)
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
    finish(folder)
    assert_same(folder, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_interrupted(number: signal.Signals, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    process = start(folder, pause=0.05)
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert "resumes it" in err
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "interrupted"
    assert "resuming" in finish(folder)
    assert_same(folder, undisturbed)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


# ---------------------------------------------------------------- what is resumed, and what is not
def test_more_epochs(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "a", epochs=2, checkpoint_method="all")).run()
    SupervisedTrainer(config(tmp_path / "a", epochs=4, checkpoint_method="all")).run()
    SupervisedTrainer(config(tmp_path / "b", epochs=4, checkpoint_method="all")).run()
    assert final(tmp_path / "a", 3) == final(tmp_path / "b", 3)


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    SupervisedTrainer(config(tmp_path)).run()
    assert "is finished: 3 epochs" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_another_config_is_refused(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    other = node(torch.optim.Adam, lr=0.02)
    with pytest.raises(ConfigError, match=r"holds a run with another optimizer\.args\.lr: 0\.01 there, 0\.02 here\n"):
        SupervisedTrainer(config(tmp_path, epochs=5, optimizer=other))


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    path = tmp_path / "epoch_2" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    message = "epoch_2/checkpoint.pt' cannot be read.*\ndelete this file to resume the run after epoch 1"
    with pytest.raises(CheckpointError, match=message):
        SupervisedTrainer(config(tmp_path, epochs=4))
    path.unlink()
    assert SupervisedTrainer(config(tmp_path, epochs=4)).epoch == 2
    torch.save({"model": {}}, path.with_name("other.pt"))
    (tmp_path / "epoch_1" / "checkpoint.pt").unlink()
    path.with_name("other.pt").rename(path)
    message = "has no 'step', so it cannot be resumed\nthere is no earlier checkpoint: choose another"
    with pytest.raises(CheckpointError, match=message):
        SupervisedTrainer(config(tmp_path, epochs=4))


def test_datapoints_are_kept_by_the_first_attempt_that_is_to(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, epochs=1, save_datapoints=None)).run()
    assert not (tmp_path / "datapoints").exists()
    trainer = SupervisedTrainer(config(tmp_path, save_datapoints="all"))
    real = trainer._eval_step

    def killed(datapoint: dict[str, Any]) -> None:
        real(datapoint)
        if trainer.metric.partial()["idx"].numel() == 16:
            raise Killed

    trainer._eval_step = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.run()
    assert len(load_debug_outputs(tmp_path / "datapoints")) < VAL
    SupervisedTrainer(config(tmp_path, save_datapoints="all")).run()
    assert sorted(load_debug_outputs(tmp_path / "datapoints")) == list(range(VAL))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "datapoints").iterdir()}
    SupervisedTrainer(config(tmp_path, epochs=4, save_datapoints="all")).run()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "datapoints").iterdir()} == before


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    path = tmp_path / "checkpoint.pt"
    for data in (pickle.dumps({"model": Evil()}), b"", b"nonsense"):
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
    assert not (tmp_path / "touched").exists()


def test_a_longer_run_keeps_the_checkpoints_of_the_shorter(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, epochs=4, checkpoint_method=3)).run()
    SupervisedTrainer(config(tmp_path, epochs=6, checkpoint_method=3)).run()
    assert [e for e in range(6) if (tmp_path / f"epoch_{e}" / "checkpoint.pt").exists()] == [2, 3, 5]


def test_keys_that_only_evaluation_uses_may_change(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    SupervisedTrainer(config(tmp_path, checkpoint="x", overwrite=True, epochs=4)).run()
    assert (tmp_path / "epoch_3" / "checkpoint.pt").exists()


def test_an_evaluation_is_not_trained_over(tmp_path: Path) -> None:
    SupervisedEvaluator(evaluation(tmp_path)).run()
    with pytest.raises(ConfigError, match="holds an evaluation"):
        SupervisedTrainer(config(tmp_path))
