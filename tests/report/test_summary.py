"""A run as the last line of a notebook's cell: a table with the numbers of its files, and nothing that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.viewer import runs

from endoscope.runs import Run
from endoscope.runs.fields import Direction


def shown(path: Path) -> str:
    return Run(path)._repr_html_()


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def test_scores_by_epoch(tmp_path: Path) -> None:
    html = shown(runs.training(tmp_path / "run"))
    assert "<b>run</b> training · finished · 3 epochs" in html
    head, *rows = cells(html)
    assert head[0] == "epoch"
    assert {"loss ↓", "accuracy ↑"} <= set(head)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    for row, epoch in zip(rows, Run(tmp_path / "run").epochs, strict=True):
        assert epoch.scores is not None
        assert row[head.index("accuracy ↑")] == f"{epoch.scores.aggregated['accuracy']:.4g}"


def test_evaluation(tmp_path: Path) -> None:
    html = shown(runs.evaluation(tmp_path / "run"))
    assert "evaluation · finished<table" in html
    assert cells(html)[1][0] == "eval"


def test_only_the_last_epochs_and_it_says_so(tmp_path: Path) -> None:
    html = shown(runs.training(tmp_path / "run", epochs=13))
    assert [row[0] for row in cells(html)[1:]] == [str(k) for k in range(3, 13)]
    assert "the last 10 of 13 epochs" in html


def test_scores_of_classes_and_numbers_as_the_viewer_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    directions: dict[str, Direction] = {"iou/0": "higher", "loss": "lower"}
    runs.write_about(folder, directions=directions, by_class=["iou"], class_names=["bg", "car"])
    rows = {0: {"iou/0": runs.NAN, "loss": -runs.INF}, 1: {"iou/0": 0.5, "loss": 1.0}}
    runs.write_table(folder / "epoch_0", rows, epoch=0, directions=directions)
    runs.write_table(folder / "epoch_1", {0: {"loss": -0.5}}, epoch=1, directions=directions)
    assert cells(shown(folder)) == [["epoch", "iou/bg ↑", "loss ↓"], ["0", "NaN", "−∞"], ["1", "–", "−0.5"]]


def test_damaged_empty_and_crashed(tmp_path: Path) -> None:
    assert "problem: config.json" in shown(runs.damaged(tmp_path / "damaged"))
    assert "no scores yet" in shown(runs.empty(tmp_path / "empty"))
    assert "failed: RuntimeError: CUDA out of memory" in shown(runs.crashed(tmp_path / "crashed"))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\ud800<b>"])
def test_texts_are_escaped(tmp_path: Path, text: str) -> None:
    html = shown(runs.hostile(tmp_path / "run", text))
    assert set(re.findall(r"<([a-z]+)", html)) <= {"div", "b", "table", "tr", "td"}
    assert "<script" not in html
    html.encode()
