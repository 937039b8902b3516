"""/api/curves and /api/map, over folders of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.viewer import runs
from tests.viewer.listing import client_of, ids, listed, stamp
from tests.viewer.runs import INF, NAN

pytestmark = pytest.mark.usefixtures("look_always")


def test_a_damaged_run_does_not_affect_others(tmp_path: Path) -> None:
    runs.damaged(tmp_path / "damaged")
    runs.training(tmp_path / "training")
    client = client_of(tmp_path)
    bad, good = ids(client, "damaged", "training")
    answer = client.get("/api/map", run=[bad, good], epoch=1).json
    assert answer["problems"] == ["damaged has no scores in this epoch that can be read"]
    assert answer["values"][0] == [None] * 12
    assert None not in answer["values"][1]
    assert client.get("/api/map", run=bad, epoch=2).status == 200
    alone = client.get("/api/map", run=bad, epoch=1)
    assert (alone.status, alone.json["indices"], alone.json["metric"]) == (200, [], None)
    assert any("epoch_1/validation_scores.json" in problem for problem in listed(client)["damaged"]["problems"])
    asked = client.get("/api/map", run=bad, epoch=1, metric="loss")
    assert (asked.status, asked.json["error"]["message"]) == (404, "this epoch has no readable scores")


# ---------------------------------------------------------------- stamp
def test_what_a_live_run_writes_is_there_at_the_next_request(tmp_path: Path) -> None:
    folder = runs.live(tmp_path / "a")
    client = client_of(tmp_path)
    (a,) = ids(client, "a")
    assert client.get("/api/map", run=a).json["epoch"] == 1
    before = stamp(client, a)
    runs.write_epoch(folder, 2)
    assert stamp(client, a) != before
    answer = client.get("/api/map", run=a)
    assert (answer.json["epoch"], answer.json["previous_epoch"]) == (2, 1)
    assert [one["epoch"] for one in listed(client)["a"]["epochs"]] == [0, 1, 2]
    assert client.get("/api/curves", run=a).json["runs"][0]["series"][0]["epochs"] == [0, 1, 2]
    tag = answer.header("etag") or ""
    assert client.get("/api/map", run=a, headers=[("if-none-match", tag)]).status == 304
    runs.write_table(folder / "epoch_2", {0: {"loss": 7.0}}, epoch=2)
    again = client.get("/api/map", run=a, headers=[("if-none-match", tag)])
    assert (again.status, again.json["indices"], again.json["values"]) == (200, [0], [[7.0]])


def test_without_the_change_the_epoch_before_is_not_read(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    client = client_of(tmp_path)
    (a,) = ids(client, "a")
    whole = client.get("/api/map", run=a, metric="loss", epoch=1, order="index").json
    assert whole["change"] is not None
    (folder / "epoch_0" / "validation_scores.json").write_text("damaged")
    fewer = client.get("/api/map", run=a, metric="loss", epoch=1, order="index", change="no").json
    assert fewer == {**whole, "change": None}
    by_change = client.get("/api/map", run=a, metric="loss", epoch=1, order="change", change="no").json
    assert by_change["previous_epoch"] is None  # it was read, but does not have the score
    assert client.get("/api/map", run=a, change="perhaps").status == 400


# ---------------------------------------------------------------- curves
def test_curves_are_the_means_of_the_files(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    runs.evaluation(tmp_path / "b")
    client = client_of(tmp_path)
    a, b = client.get("/api/curves", run=ids(client, "a", "b")).json["runs"]
    found = {(series["kind"], series["name"]): series for series in a["series"]}
    assert [*found] == [
        ("score", "loss"),
        ("score", "accuracy"),
        ("score", "macro_f1"),
        ("loss", "loss"),
        ("loss", "part"),
    ]
    for epoch in range(3):
        aggregated = json.loads((folder / f"epoch_{epoch}" / "validation_scores.json").read_text())["aggregated"]
        losses = json.loads((folder / f"epoch_{epoch}" / "training_losses.json").read_text())
        assert as_float(found["score", "loss"]["values"][epoch]) == pytest.approx(aggregated["loss"], nan_ok=True)
        assert found["score", "accuracy"]["values"][epoch] == aggregated["accuracy"]
        for name, values in losses.items():
            assert found["loss", name]["values"][epoch] == pytest.approx(sum(values) / len(values))
    assert found["score", "accuracy"]["direction"] == "higher"
    assert found["loss", "part"]["direction"] == "lower"
    assert found["score", "loss"]["values"][1] == "NaN"  # datapoint 3 has NaN there
    assert found["score", "macro_f1"]["values"] == [0.4] * 3  # which only progress.json has
    assert [series["epochs"] for series in b["series"]] == [["eval"]] * 2


def test_curves_of_a_run_without_anything_are_empty(tmp_path: Path) -> None:
    runs.just_started(tmp_path / "a")
    client = client_of(tmp_path)
    assert client.get("/api/curves").json["runs"][0]["series"] == []


def as_float(value: float | str) -> float:
    return float(value)  # also of "NaN" and "Infinity"


# ---------------------------------------------------------------- map
def test_a_map_against_the_plain_way(tmp_path: Path) -> None:
    first = {
        0: {"loss": 1.0},
        1: {"loss": NAN},
        2: {"loss": INF},
        3: {"loss": -INF},
        4: {"accuracy": 1.0},
        5: {"loss": 1.0},
        7: {"loss": 0.25},
    }
    second = {**{k: {"loss": float(k)} for k in (0, 1, 2, 3, 5, 6)}, 7: {"loss": NAN}}
    folder = tmp_path / "a"
    runs.training(folder, epochs=0)
    runs.write_epoch(folder, 3, rows=second, capture=False)
    runs.write_epoch(folder, 8, rows=first, capture=False)
    client = client_of(tmp_path)
    answer = client.get("/api/map", epoch=8, metric="loss", percentile=30).json
    assert answer["indices"] == [1, 2, 0, 5, 7, 3, 4]
    assert answer["values"] == [["NaN", "Infinity", 1.0, 1.0, 0.25, "-Infinity", None]]
    assert answer["change"] == ["NaN", "Infinity", 1.0, -4.0, "NaN", "-Infinity", None]
    assert answer["fails"] == [[1, 1, 0, 0, 0, 0, 0]]  # 30 % of six, rounded up, is two
    assert answer["common"] == [1, 1, 0, 0, 0, 0, 0]
    assert (answer["failures"], answer["range"], answer["nan"], answer["missing"]) == ([2], [0.25, 1.0], 1, 1)
    assert (answer["epoch"], answer["previous_epoch"], answer["direction"]) == (8, 3, "lower")
    by_index = client.get("/api/map", epoch=8, metric="loss", order="index").json
    assert by_index["indices"] == [0, 1, 2, 3, 4, 5, 7]
    by_change = client.get("/api/map", epoch=8, metric="loss", order="change").json
    # 1 became NaN, 2 infinitely worse, 0 one worse, 5 four better, 3 infinitely better, 7 a number again, 4 has none
    assert by_change["indices"] == [1, 2, 0, 5, 3, 7, 4]
    accuracy = client.get("/api/map", epoch=8, metric="accuracy").json
    assert (accuracy["indices"][0], accuracy["values"][0][0], accuracy["missing"]) == (4, 1.0, 6)
    assert accuracy["change"] is None


def test_the_map_of_several_runs(tmp_path: Path) -> None:
    a = {k: {"loss": float(k)} for k in range(10)}
    b = {k: {"loss": float(9 - k)} for k in range(4, 12)}
    c = {k: {"loss": 9.0 if k == 5 else 0.0} for k in range(10)}
    for name, rows in (("a", a), ("b", b), ("c", c)):
        runs.evaluation(tmp_path / name, rows=rows)
    client = client_of(tmp_path)
    answer = client.get("/api/map", run=ids(client, "a", "b", "c"), percentile=20).json
    assert sorted(answer["indices"]) == [*range(12)]
    assert answer["failures"] == [2, 2, 1]
    # a: 9, 8 fail; b: 4, 5 (losses 5 and 4); c: 5 alone, because the others are as good as the best
    assert answer["indices"][0] == 5 and answer["common"][0] == 2
    assert sorted(answer["indices"][1:4]) == [4, 8, 9]
    at = {index: k for k, index in enumerate(answer["indices"])}
    assert answer["values"][1][at[0]] is None and answer["values"][0][at[11]] is None
    differing = client.get("/api/map", run=ids(client, "a", "b", "c"), order="disagreement").json
    spread = {
        k: max(scores) - min(scores)
        for k in range(12)
        if len(scores := [rows[k]["loss"] for rows in (a, b, c) if k in rows]) > 1
    }
    expected = [*sorted(spread, key=lambda k: (-spread[k], k)), 10, 11]
    assert differing["indices"] == expected


def test_without_a_metric_the_first_one_is_meant_and_without_an_epoch_the_last_scored(tmp_path: Path) -> None:
    runs.crashed(tmp_path / "a")
    answer = client_of(tmp_path).get("/api/map").json
    assert (answer["metric"], answer["epoch"], answer["change"], answer["previous_epoch"]) == ("loss", 0, None, None)
    assert (answer["percentile"], answer["order"]) == (5.0, "failures")


def test_runs_without_the_epoch_are_reported_beside_the_others(tmp_path: Path) -> None:
    runs.training(tmp_path / "long", epochs=3)
    runs.training(tmp_path / "short", epochs=1)
    client = client_of(tmp_path)
    answer = client.get("/api/map", run=ids(client, "short", "long"), epoch=2).json
    assert answer["problems"] == ["short has no epoch 2"]
    assert (answer["epochs"], answer["epoch"]) == ([None, 2], 2)
    assert answer["values"][0] == [None] * 12
    assert (answer["scored"], answer["failures"]) == (1, [0, 1])
    assert client.get("/api/map", run=ids(client, "short", "long"), epoch=0).json["scored"] == 2
    assert client.get("/api/map", run=ids(client, "short"), epoch=2).status == 404


def test_a_metric_that_nobody_has_is_refused_with_the_nearest(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    answer = client_of(tmp_path).get("/api/map", metric="acuracy")
    assert answer.status == 404
    assert answer.json["error"]["message"] == "no datapoint has the score 'acuracy'; closest: 'accuracy'"
    assert answer.json["error"]["hint"] == "There are loss, accuracy."


def test_the_orders_are_the_same_numbers_in_another_order(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    client = client_of(tmp_path)
    seen = []
    for order in ("failures", "index", "change", "disagreement"):
        answer = client.get("/api/map", order=order, epoch=1).json
        rows = zip(answer["indices"], answer["values"][0], answer["change"], answer["fails"][0], strict=True)
        seen.append(sorted(rows, key=lambda row: row[0]))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert not math.isnan(seen[0][0][1])


def test_scores_that_cannot_be_read_hide_no_others(tmp_path: Path) -> None:
    runs.training(tmp_path / "a", epochs=2)
    file = tmp_path / "a" / "epoch_1" / "validation_scores.json"
    file.write_bytes(file.read_bytes()[:200])
    client = client_of(tmp_path)
    (run,) = client.get("/api/runs").json["runs"]
    assert run["metrics"] and run["datapoints"] > 0
    assert client.get("/api/map", epoch=0).json["indices"]
