"""Run: unreadable files are reported, and the rest is read."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runners.training import VAL, Blobs, config, evaluation

from endoscope.capturing.snapshot import snapshot
from endoscope.errors import DamagedRecordError, EndoscopeError
from endoscope.pages.reader import DebugOutputs
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runs import Run, RunNotFoundError, layout
from endoscope.runs import run as run_module
from endoscope.runs.atomic import write_json
from endoscope.runs.process import identity
from endoscope.runs.scores import write_scores

from .folders import CONFIG, NAN, PROGRESS, RUN, SCORES, change, make_evaluation, make_pages, make_training


# ---------------------------------------------------------------- as a runner leaves it
@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    SupervisedTrainer(config(folder)).run()
    return folder


def test_a_training(trained: Path) -> None:
    run = Run(trained)
    assert (run.kind, run.status, run.name) == ("training", "finished", trained.name)
    assert run.class_names == Blobs.classes
    assert run.directions == {"accuracy": "higher", "confidence": "higher", "loss": "lower", "macro_f1": "higher"}
    assert run.config["epochs"] == 3
    assert (run.about.seed, run.about.epochs, run.about.checkpoint_epochs) == (7, 3, (1, 2))
    assert [one.epoch for one in run.progress.epochs] == [epoch.number for epoch in run.epochs] == [0, 1, 2]
    for epoch, noted in zip(run.epochs, run.progress.epochs, strict=True):
        assert epoch.scores is not None
        assert epoch.scores.aggregated == noted.scores
        assert epoch.scores.indices.tolist() == list(range(VAL))
        assert (epoch.scores.split, epoch.scores.epoch) == ("validation", epoch.number)
        assert epoch.losses["loss"].mean() == pytest.approx(noted.loss["mean"])
        assert epoch.holds(layout.CHECKPOINT) == (epoch.number != 0)
        assert (epoch.debugger is None) == (epoch.outputs is None) == (epoch.number == 0)
    last = run.epoch(2)
    assert last is not None and last.outputs is not None and last.debugger is not None and run.datapoints is not None
    assert sorted(last.debugger) == sorted(last.outputs) == sorted(run.datapoints) == list(range(VAL))
    assert last.debugger.list(3) == ["maps", "activations"]
    assert last.outputs[3]["outputs"].shape == (1, 3)
    assert int(run.datapoints[3]["labels"]) == int(Blobs(VAL, seed=1).labels[3])
    assert run.problems == []
    assert repr(run) == f"<Run {str(trained)!r}: training, finished>"


def test_an_evaluation(trained: Path, tmp_path: Path) -> None:
    SupervisedEvaluator(evaluation(tmp_path, checkpoint=str(trained))).run()
    run = Run(tmp_path)
    assert (run.kind, run.status) == ("evaluation", "finished")
    (only,) = run.epochs
    assert (only.number, only.path) == (None, tmp_path)
    assert run.epoch(None) == only
    assert only.scores is not None and only.outputs is not None and only.debugger is not None
    assert (only.scores.split, only.scores.epoch, len(only.scores.indices)) == ("evaluation", None, VAL)
    assert sorted(only.outputs) == sorted(only.debugger) == list(range(VAL))
    assert only.losses == {}
    assert run.problems == []


# ---------------------------------------------------------------- damaged runs
def found(pages: DebugOutputs | None) -> list[int] | None:
    return None if pages is None else sorted(pages)


def looked_at(run: Run) -> dict[str, Any]:
    """Everything that a run returns."""
    return {
        "kind": run.kind,
        "status": run.status,
        "about": run.about.seed,
        "config": run.config,
        "class_names": run.class_names,
        "directions": dict(run.directions),
        "progress": len(run.progress.epochs),
        "datapoints": found(run.datapoints),
        "epochs": [epoch.number for epoch in run.epochs],
        "scores": [epoch.scores and epoch.scores.indices.tolist() for epoch in run.epochs],
        "losses": [sorted(epoch.losses) for epoch in run.epochs],
        "outputs": [found(epoch.outputs) for epoch in run.epochs],
        "debugger": [found(epoch.debugger) for epoch in run.epochs],
    }


WHOLE: dict[str, Any] = {
    "kind": "training",
    "status": "finished",
    "about": 7,
    "config": CONFIG,
    "class_names": ("red", "grün"),
    "directions": RUN["directions"],
    "progress": 2,
    "datapoints": [17, 18],
    "epochs": [0, 1],
    "scores": [[17, 18, 101]] * 2,
    "losses": [["loss", "part"]] * 2,
    "outputs": [None, [17, 18]],
    "debugger": [None, [17, 18]],
}
WITHOUT: dict[str, dict[str, Any]] = {
    "run.json": {"status": "unknown", "about": None, "class_names": None},
    "config.json": {"config": None},
    "progress.json": {"progress": 0},
    "epoch_0/validation_scores.json": {"scores": [None, [17, 18, 101]]},
    "epoch_1/training_losses.json": {"losses": [["loss", "part"], []]},
}
"""What is missing when a file cannot be read; everything else is read."""


def test_twin_an_undamaged_run(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path / "run"))
    assert looked_at(run) == WHOLE
    assert run.problems == []
    (epoch,) = [epoch for epoch in run.epochs if epoch.number == 1]
    np.testing.assert_array_equal(epoch.losses["loss"], [1.0, NAN, 0.5])


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def deep(path: Path) -> None:
    path.write_bytes(b'{"a":' * 50_000)


def huge_number(path: Path) -> None:
    path.write_bytes(b'{"a": ' + b"9" * 10_000 + b"}")


def twice(path: Path) -> None:
    path.write_bytes(b'{"loss": [1], "loss": [2]}')


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link_outside(path: Path) -> None:
    outside = path.parents[2] / f"outside {path.name}"
    shutil.move(path, outside)
    path.symlink_to(outside)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def too_large(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(2 << 30)


DAMAGES = [missing, empty, cut, no_text, deep, huge_number, twice, pipe, link, link_outside, folder, too_large]


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unreadable_file_is_reported_and_the_rest_is_read(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    work_dir = make_training(tmp_path / "run")
    damage(work_dir / name)
    run = Run(work_dir)
    expected = {**WHOLE, **WITHOUT[name]}
    assert looked_at(run) == expected
    assert [problem.partition(":")[0] for problem in run.problems] == [name]


@pytest.mark.parametrize("name", ["datapoints", "epoch_1/outputs", "epoch_1/debugger"])
@pytest.mark.parametrize("how", ["link", "file", "unreadable"])
def test_a_folder_of_pages_that_cannot_be_read(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_dir = make_training(tmp_path / "run")
    path = work_dir / name
    if how == "unreadable":
        for inside in path.iterdir():
            inside.write_bytes(b"\xff" * 100)
    else:
        shutil.move(path, tmp_path / "outside")
        path.symlink_to(tmp_path / "outside") if how == "link" else path.touch()
    run = Run(work_dir)
    nothing: Any = [] if how == "unreadable" else None
    changed = nothing if name == "datapoints" else [None, nothing]
    assert looked_at(run) == {**WHOLE, name.split("/")[-1]: changed}
    assert run.problems
    assert all(problem.startswith(f"{name}: ") for problem in run.problems)


@pytest.mark.parametrize("how", ["link", "file"])
def test_an_epoch_that_is_not_a_folder(how: str, tmp_path: Path) -> None:
    work_dir = make_training(tmp_path / "run")
    shutil.move(work_dir / "epoch_1", tmp_path / "outside")
    (work_dir / "epoch_1").symlink_to(tmp_path / "outside") if how == "link" else (work_dir / "epoch_1").touch()
    run = Run(work_dir)
    lost = {"scores": [[17, 18, 101], None], "losses": [["loss", "part"], []]}
    assert looked_at(run) == {**WHOLE, **lost, "outputs": [None, None], "debugger": [None, None]}
    assert len(run.problems) == 4
    assert all("epoch_1/" in problem and "links are not followed" in problem for problem in run.problems)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/endoscope-bomb-went-off",)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    work_dir = make_training(tmp_path / "run")
    shutil.rmtree(work_dir / "epoch_1" / "debugger")
    (work_dir / "epoch_1" / "debugger").mkdir()
    for name in ("epoch_1/debugger/page_0.pkl", "epoch_1/checkpoint.pt"):
        (work_dir / name).write_bytes(pickle.dumps(Bomb()))
    run = Run(work_dir)
    assert looked_at(run) == {**WHOLE, "debugger": [None, None]}
    assert not os.path.exists("/tmp/endoscope-bomb-went-off")
    (problem,) = run.problems
    assert problem.startswith("epoch_1/debugger: it holds pickle pages, which can run code and are not opened")


def test_a_damaged_record_is_reported_and_others_are_read(tmp_path: Path) -> None:
    work_dir = make_training(tmp_path / "run")
    path = work_dir / "epoch_1" / "debugger" / "page_0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    epoch = Run(work_dir).epoch(1)
    assert epoch is not None and epoch.debugger is not None
    with pytest.raises(DamagedRecordError):
        epoch.debugger[18]
    assert epoch.debugger is not None
    (problem,) = epoch.run.problems
    assert problem.startswith("epoch_1/debugger: page_0.safetensors, record 0 (datapoint 18): checksum")


def test_invalid_losses(tmp_path: Path) -> None:
    work_dir = make_training(tmp_path / "run")
    change(work_dir / "epoch_0" / "training_losses.json", a="x", b=[1, "y"], c={"d": 1}, e=[10**400])
    (epoch, _) = Run(work_dir).epochs
    assert sorted(epoch.losses) == ["loss", "part"]
    assert [problem.split(";")[0] for problem in epoch.run.problems] == [
        f"epoch_0/training_losses.json: {wrong}" for wrong in ("a is 'x'", "b is a list", "c is a dict", "e is a list")
    ]
    (work_dir / "epoch_0" / "training_losses.json").write_text("[1]")
    assert epoch.losses == {}
    assert epoch.run.problems == ["epoch_0/training_losses.json: it holds a list; expected an object"]


# ---------------------------------------------------------------- a run without run.json
def test_the_kind_follows_from_the_names_in_the_folder(tmp_path: Path) -> None:
    assert Run(tmp_path).kind == "unknown"
    assert Run(tmp_path).problems == ["config.json: it is missing", "run.json: it is missing"]
    assert Run(tmp_path).epochs == []
    write_scores(SCORES, tmp_path, split="evaluation")
    run = Run(tmp_path)
    assert (run.kind, run.status, run.directions) == ("evaluation", "unknown", SCORES.directions)
    (tmp_path / "epoch_0").mkdir()
    assert run.kind == "training"


def test_a_newer_version_is_refused_and_the_scores_are_read(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path / "run", version=2))
    assert looked_at(run) == {**WHOLE, **WITHOUT["run.json"]}
    assert run.problems == ["run.json: it has version 2, this Endoscope reads 1; upgrade Endoscope"]


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="there is no folder '.*nowhere'") as raised:
        Run(tmp_path / "nowhere")
    assert isinstance(raised.value, EndoscopeError)
    assert isinstance(raised.value, FileNotFoundError)
    (tmp_path / "file").touch()
    with pytest.raises(RunNotFoundError):
        Run(tmp_path / "file")


def test_a_folder_that_is_removed(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path / "run"))
    epochs = run.epochs
    shutil.rmtree(run.path)
    assert (run.kind, run.epochs) == ("unknown", [])
    assert epochs[0].scores is None
    assert epochs[1].debugger is None
    assert "the folder: it is missing" in run.problems


def test_a_run_of_any_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xff \n")
    run = Run(make_training(tmp_path / name))
    assert looked_at(run) == WHOLE
    assert run.name == name


# ---------------------------------------------------------------- a live run
def test_the_growth_of_a_live_run_is_seen(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path, status="running", process=identity(os.getpid())))
    assert looked_at(run) == {**WHOLE, "status": "running"}
    (tmp_path / "epoch_2").mkdir()
    write_json(tmp_path / "progress.json", {**PROGRESS, "now": {"stage": "epoch 2 validation"}})
    assert [epoch.number for epoch in run.epochs] == [0, 1, 2]
    assert (run.epochs[2].scores, run.epochs[2].losses, run.progress.stage) == (None, {}, "epoch 2 validation")
    assert run.problems == []  # they are yet to come
    write_scores(SCORES, tmp_path / "epoch_2", split="validation", epoch=2)
    assert run.epochs[2].scores is not None
    store = PageStore(tmp_path / "epoch_2" / "debugger", StoreSettings(1 << 20, 1 << 20))
    for k in range(3):
        store.put(k, {"a": snapshot(torch.ones(1))}, {})
        store.flush()
        seen = run.epochs[2].debugger
        assert seen is not None and sorted(seen) == list(range(k + 1))
        assert run.epochs[2].debugger is seen  # until there is more
    store.close()
    write_json(tmp_path / "run.json", {**RUN, "status": "finished"})
    assert run.status == "finished"
    assert run.epochs[2].losses == {}
    assert run.problems == ["epoch_2/training_losses.json: it is missing"]


def test_many_epochs_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(make_training(tmp_path, epochs=30))
    listed = []
    real = os.listdir
    monkeypatch.setattr(run_module.os, "listdir", lambda folder: listed.append(folder) or real(folder))  # type: ignore[func-returns-value]
    assert all(epoch.scores is not None and epoch.losses for epoch in run.epochs)
    assert len(listed) == 1


def test_an_epoch_before_the_last_must_be_complete(tmp_path: Path) -> None:
    run = Run(make_training(tmp_path, status="running"))
    (tmp_path / "epoch_0" / "validation_scores.json").unlink()
    assert run.epochs[0].scores is None
    assert run.problems == ["epoch_0/validation_scores.json: it is missing"]


def test_files_of_pages_do_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_OPEN_FOLDERS", 2)
    work_dir = make_training(tmp_path, epochs=6)
    before = len(os.listdir("/proc/self/fd"))
    run = Run(work_dir)
    for epoch in range(6):
        make_pages(work_dir / f"epoch_{epoch}" / "debugger", features=torch.ones(2, 3))
    for _ in range(3):
        for epoch in run.epochs:
            assert epoch.debugger is not None
            epoch.debugger[17]
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 2
    del run, epoch
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_evaluation_without_progress_is_complete(tmp_path: Path) -> None:
    run = Run(make_evaluation(tmp_path))
    assert run.progress.epochs == ()
    assert run.problems == []


def test_the_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_training(Path("runs/digits"))
    make_pages(Path("runs/digits/epoch_1/debugger"), features=torch.ones(2, 3))
    doc = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text()
    (example,) = [part.split("```")[0] for part in doc.split("```python\n")[1:]]
    exec(example, {})


def test_json_of_a_config_is_data(tmp_path: Path) -> None:
    work_dir = make_training(tmp_path / "run")
    (work_dir / "config.json").write_text(json.dumps({"class": "os.system", "args": {"command": "false"}}))
    assert Run(work_dir).config == {"class": "os.system", "args": {"command": "false"}}
