"""/api/runs and /api/stamp, over folders of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from tests.viewer import runs
from tests.viewer.asgi import Client
from tests.viewer.listing import client_of, ids, listed, stamp

from endoscope.runs.fields import Direction
from endoscope.viewer import runs_api
from endoscope.viewer.library import Library

pytestmark = pytest.mark.usefixtures("look_always")


# ---------------------------------------------------------------- runs
def test_a_training_is_listed_with_what_it_has(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    (run,) = client_of(tmp_path).get("/api/runs").json["runs"]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    last = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
    assert run.pop("id").startswith("a-")
    assert run.pop("last_write") == pytest.approx(last)
    assert run.pop("progress")["epochs_done"] == 3
    assert all(epoch.pop("version") for epoch in run["epochs"])
    assert run == {
        "name": "a",
        "kind": "training",
        "status": "finished",
        "status_text": "finished",
        "epochs": [
            {"epoch": 0, "scores": True, "outputs": False, "debugger": False},
            {"epoch": 1, "scores": True, "outputs": True, "debugger": True},
            {"epoch": 2, "scores": True, "outputs": True, "debugger": True},
        ],
        "metrics": [
            {"name": "loss", "label": "loss", "direction": "lower"},
            {"name": "accuracy", "label": "accuracy", "direction": "higher"},
        ],
        "datapoints": 12,
        "class_names": ["cat", "dog", "ship"],
        "size": size,
        "problems": [],
    }


def test_unreadable_newest_scores_count_as_absent(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a", epochs=4)
    for epoch in (0, 2, 3):
        (folder / f"epoch_{epoch}" / "validation_scores.json").write_text("damaged")
    (run,) = client_of(tmp_path).get("/api/runs").json["runs"]
    assert [one["scores"] for one in run["epochs"]] == [True, True, False, False]  # older ones are not looked into
    assert run["datapoints"] == 12
    (folder / "epoch_1" / "validation_scores.json").write_text("damaged")
    (run,) = client_of(tmp_path).get("/api/runs").json["runs"]
    assert [one["scores"] for one in run["epochs"]] == [False] * 4
    assert (run["datapoints"], run["metrics"]) == (None, [])


def test_scores_of_classes_are_called_by_their_names(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a", by_class=["iou"])
    names = ["iou/0", "iou/2", "iou/7", "other/0"]
    directions: dict[str, Direction] = dict.fromkeys(names, "higher")
    runs.write_table(folder / "epoch_2", {0: dict.fromkeys(names, 0.5)}, epoch=2, directions=directions)
    client = client_of(tmp_path)
    (run,) = client.get("/api/runs").json["runs"]
    labels = {"iou/0": "iou/cat", "iou/2": "iou/ship", "iou/7": "iou/7", "other/0": "other/0"}
    assert {one["name"]: one["label"] for one in run["metrics"]} == labels
    scores = client.get("/api/datapoint", run=run["id"], epoch=2, dp=0).json["scores"]
    assert {one["name"]: one["label"] for one in scores} == labels
    (curves,) = client.get("/api/curves", run=run["id"]).json["runs"]
    reply = {one["name"]: one["label"] for one in curves["series"]}
    assert labels.items() <= reply.items()


def test_an_evaluation_has_one_epoch(tmp_path: Path) -> None:
    runs.evaluation(tmp_path / "a")
    (run,) = client_of(tmp_path).get("/api/runs").json["runs"]
    assert run["kind"] == "evaluation"
    (epoch,) = run["epochs"]
    assert epoch.pop("version")
    assert epoch == {"epoch": "eval", "scores": True, "outputs": True, "debugger": True}
    assert run["progress"] is None


def test_every_status_of_a_run_is_listed(tmp_path: Path) -> None:
    for kind in ("live", "crashed", "killed", "just_started", "damaged"):
        getattr(runs, kind)(tmp_path / kind)
    found = listed(client_of(tmp_path))
    assert {name: run["status"] for name, run in found.items()} == {
        "live": "running",
        "crashed": "failed",
        "killed": "died",
        "just_started": "running",
        "damaged": "finished",
    }
    assert found["live"]["status_text"] == "running: epoch 2 training"
    assert found["crashed"]["status_text"] == "failed: RuntimeError: CUDA out of memory"
    nothing = {"scores": False, "version": None, "outputs": False, "debugger": False}
    assert found["crashed"]["epochs"][1] == {"epoch": 1, **nothing}
    assert (found["just_started"]["datapoints"], found["just_started"]["metrics"]) == (None, [])
    assert any("config.json: it is not JSON" in problem for problem in found["damaged"]["problems"])


def test_the_version_of_an_epoch_changes_with_its_scores(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    client = client_of(tmp_path)

    def versions() -> list[str]:
        (run,) = client.get("/api/runs").json["runs"]
        return [epoch["version"] for epoch in run["epochs"]]

    first = versions()
    assert len({*first}) == 3 and versions() == first
    (tmp_path / "a" / "epoch_1" / "note.txt").write_text("no score")
    runs.write_progress(tmp_path / "a", 3, stage="again")
    assert versions() == first
    runs.write_table(tmp_path / "a" / "epoch_1", runs.usual_rows(1), epoch=1)
    assert [a == b for a, b in zip(versions(), first, strict=True)] == [True, False, True]


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    runs.empty(tmp_path / "runs")
    assert client_of(tmp_path / "runs").get("/api/runs").json == {
        "runs": [],
        "left": 0,
        "problems": ["there is no run in 'runs' yet"],
    }


def test_the_stamp_changes_with_every_file_and_with_nothing_else(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    other = runs.training(tmp_path / "b")
    client = client_of(tmp_path)
    a, b = ids(client, "a", "b")
    seen = {stamp(client, a)}
    assert stamp(client, a) in seen

    def changed() -> bool:
        new = stamp(client, a) not in seen
        seen.add(stamp(client, a))
        return new

    runs.write_progress(folder, 3, stage="epoch 3 training")
    assert changed()
    runs.write_table(folder / "epoch_1", runs.usual_rows(0), epoch=1)
    assert changed()
    with next((folder / "epoch_2" / "debugger").glob("*.jsonl")).open("ab") as page:
        page.write(b"x")
    assert changed()
    (folder / "epoch_3").mkdir()
    assert changed()
    (folder / "epoch_2" / "training_losses.json").unlink()
    assert changed()
    (folder / "notes.txt").write_text("not of the run")
    runs.write_progress(other, 1)
    client.get("/api/map", run=a)
    client.get("/api/datapoint", run=a, dp=0)
    assert not changed()
    assert stamp(client, b) != stamp(client, a) != stamp(client)


def test_the_stamp_of_all_runs_changes_when_one_appears(tmp_path: Path) -> None:
    runs.training(tmp_path / "a", epochs=1)
    client = client_of(tmp_path)
    before = stamp(client)
    runs.just_started(tmp_path / "b")
    assert stamp(client) != before
    assert [*listed(client)] == ["a", "b"]


def test_the_stamp_opens_no_file(tmp_path: Path, opened_files: list[object]) -> None:
    runs.training(tmp_path / "a")
    client = client_of(tmp_path)
    (a,) = ids(client, "a")
    opened_files.clear()
    stamp(client, a)
    assert [path for path in opened_files if str(path).startswith(("page", "run", "progress", "validation"))] == []
    client.get("/api/map", run=a)
    assert opened_files  # it was watching


# ---------------------------------------------------------------- many runs
class Clock:
    """Goes on by a second each time that it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_what_takes_long_is_left_for_the_next_request(tmp_path: Path) -> None:
    for k in range(6):
        runs.training(tmp_path / f"run_{k}", epochs=1)
    there = Library([tmp_path])
    client = Client(Starlette(routes=runs_api.routes(there, Clock())))
    wanted = there.entries()[4].id
    reply = client.get("/api/runs", run=wanted).json
    assert [run["name"] for run in reply["runs"]] == [f"run_{k}" for k in range(6)]
    unread = [run["name"] for run in reply["runs"] if run["status_text"] == "not read yet"]
    assert len(unread) == reply["left"] > 0
    assert "run_4" not in unread
    left = [reply["left"]]
    while left[-1]:
        left.append(client.get("/api/runs").json["left"])
        assert left[-1] < left[-2]
    assert all(run["metrics"] and run["size"] for run in client.get("/api/runs").json["runs"])
    assert {*reply["runs"][0]} == {*client.get("/api/runs").json["runs"][0]}


def test_a_list_of_known_runs_opens_no_file(tmp_path: Path, opened_files: list[object]) -> None:
    for k in range(3):
        runs.training(tmp_path / f"run_{k}", epochs=1)
    client = client_of(tmp_path)
    before = client.get("/api/runs").json
    opened_files.clear()
    assert client.get("/api/runs").json == before
    assert opened_files == []
    runs.write_progress(tmp_path / "run_1", 1, stage="epoch 1 training")
    assert client.get("/api/runs").json != before
    assert opened_files  # it was watching


def test_a_change_in_other_files_is_noticed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_api, "IN_TURN", 1)
    folders = [runs.training(tmp_path / f"run_{k}", epochs=2) for k in range(4)]
    client = client_of(tmp_path)
    sizes = [run["size"] for run in client.get("/api/runs").json["runs"]]
    stamps = [stamp(client) for _ in range(4)]
    assert len({*stamps}) == 1
    with next((folders[2] / "epoch_1" / "debugger").glob("*.jsonl")).open("ab") as page:
        page.write(b"x")
    seen = [client.get("/api/runs").json["runs"][2]["size"] for _ in range(4)]
    assert seen[-1] == sizes[2] + 1
    assert stamp(client) != stamps[0]
