"""Debug outputs and runs in a notebook: HTML that needs nothing else and runs nothing."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.report.parsed import Parsed, several
from tests.viewer import runs
from tests.viewer.payloads import PAYLOADS

import endoscope
from endoscope.errors import DatapointNotFoundError, PageError
from endoscope.report import notebook
from endoscope.report.notebook import display_debug_outputs, load_debug_outputs, run_html
from endoscope.runs import Run
from endoscope.runs.fields import Direction


def displayed(folder: Path, idx: int) -> Parsed:
    return Parsed(display_debug_outputs(folder, idx)._repr_html_())


def run_shown(path: Path) -> Parsed:
    return Parsed(run_html(Run(path)))


# ---------------------------------------------------------------- a datapoint
def test_the_names_of_the_seed() -> None:
    assert load_debug_outputs is endoscope.load_debug_outputs


def test_every_debugger_and_its_values_are_shown(trained: Path) -> None:
    shown = displayed(trained / "epoch_1", 4)
    assert shown.unsafe() == []
    for name in load_debug_outputs(trained / "epoch_1")[4]:
        assert name in shown.text
    assert "1×10×4×4 · float32 · min" in shown.text
    assert "1 NaN, 0 infinite" in shown.text
    pictures = [str(attrs["src"]) for attrs in shown.all("img")]
    assert len(pictures) == 6  # the map of gradcam alone, and over the input
    for source in pictures:
        Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).verify()


def test_a_mask_has_both_pictures_and_the_colours_of_its_classes(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    mask = torch.zeros(2, 8, 8, dtype=torch.int64)
    mask[:, :4] = 1
    runs.write_pages(folder / "epoch_1" / "debugger", {(0, 1): {"seg": {"mask": mask}}})
    shown = displayed(folder / "epoch_1", 1)
    assert shown.unsafe() == []
    pictures = shown.all("img")
    assert [attrs["alt"] for attrs in pictures] == ["mask, 1×8×8, alone", "mask, 1×8×8, over the input"]
    assert pictures[0]["src"] != pictures[1]["src"]
    assert len({attrs["fill"] for attrs in shown.all("rect")}) == 2
    for words in ("alone", "over the input", "cat", "50.0 %"):
        assert words in shown.text


def test_the_folder_may_be_that_of_the_debuggers_or_an_evaluation(trained: Path, tmp_path: Path) -> None:
    inside = display_debug_outputs(trained / "epoch_1" / "debugger", 4)._repr_html_()
    assert inside == display_debug_outputs(trained / "epoch_1", 4)._repr_html_()
    assert "Datapoint 4" in displayed(runs.evaluation(tmp_path / "eval"), 4).text


def test_captures_outside_of_a_run(tmp_path: Path) -> None:
    runs.write_pages(tmp_path / "captures", {(0, 1): runs.seen_of([0, 1])})
    assert displayed(tmp_path / "captures", 1).unsafe() == []


def test_an_unknown_datapoint_or_folder_is_an_error(trained: Path) -> None:
    with pytest.raises(DatapointNotFoundError, match="no datapoint 99"):
        display_debug_outputs(trained / "epoch_1", 99)
    with pytest.raises(PageError, match="there is no folder"):
        display_debug_outputs(trained / "epoch_77", 1)


def test_a_saved_page_opens_by_itself(trained: Path, tmp_path: Path) -> None:
    shown = display_debug_outputs(trained / "epoch_1", 4)
    shown.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8">')
    assert "http:" not in page and "https:" not in page
    assert Parsed(page).unsafe() == []
    assert Parsed(shown._repr_html_()).text in Parsed(page).text


def test_a_damaged_debugger_is_reported_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = runs.damaged(tmp_path / "run") / "epoch_1"
    texts = [displayed(folder, idx).text for idx in runs.INDICES]
    assert any("checksum" in text for text in texts)
    assert all("feature_map" in text or "checksum" in text for text in texts)


def test_pictures_are_bounded_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_PICTURES", 2)
    seen: dict[str, Any] = {"many": {f"map{k}": torch.rand(2, 3, 4, 4) for k in range(4)}}
    runs.write_pages(tmp_path / "captures", {(0, 1): seen})
    shown = displayed(tmp_path / "captures", 0)
    assert len(shown.all("img")) == 2
    assert shown.text.count("not drawn: 2 pictures are shown at once") == 2


def test_a_large_value_is_not_read_and_the_others_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_BYTES", 1 << 20)
    runs.write_pages(tmp_path / "captures", {(0, 1): {"big": torch.zeros(2, 1 << 19), "small": torch.zeros(2, 3)}})
    shown = displayed(tmp_path / "captures", 0)
    assert "2 MB of tensors; at most 1 MB are displayed" in shown.text
    assert {"class": "line", "d": "M0.0 120.0L160.0 120.0L320.0 120.0"} in shown.all("path")


# ---------------------------------------------------------------- safety
@pytest.mark.parametrize("text", [*several(PAYLOADS), "\ud800<b>"])
def test_text_of_a_run_is_escaped(text: str, tmp_path: Path) -> None:
    folder = runs.hostile(tmp_path / "run", text)
    for html in (display_debug_outputs(folder / "epoch_0", 0)._repr_html_(), run_html(Run(folder))):
        shown = Parsed(html)
        assert shown.unsafe() == []
        assert text.encode(errors="replace").decode() in " ".join(shown.texts)
        html.encode()


def test_twin_an_unescaped_text_is_noticed() -> None:
    assert Parsed("<div><script>alert(1)</script></div>").unsafe()
    assert Parsed('<div onclick="x">a</div>').unsafe()
    assert Parsed('<div style="x">a</div>').unsafe()
    assert Parsed('<img src="http://x.example">').unsafe()
    assert Parsed('<a href="http://x.example">x</a>').unsafe()


# ---------------------------------------------------------------- a run
def test_a_run_shows_its_scores_by_epoch_and_its_worst(trained: Path) -> None:
    shown = run_shown(trained)
    assert shown.unsafe() == []
    assert "run training · finished · 3 epochs" in shown.text
    head, *rows = shown.rows()
    assert head == ["epoch", "loss ↓", "accuracy ↑"]
    epochs = Run(trained).epochs
    assert [row[0] for row in rows[:3]] == ["0", "1", "2"]
    for row, epoch in zip(rows, epochs, strict=False):
        assert epoch.scores is not None
        assert row[2] == f"{epoch.scores.aggregated['accuracy']:.4g}"
    assert "worst 5 of 12 datapoints by loss, epoch 2" in shown.text
    table = epochs[-1].scores
    assert table is not None
    worst = table.indices[table.worst_first("loss")][:5].tolist()
    assert [row[0] for row in rows[3:]] == ["datapoint", *map(str, worst)]


def test_a_notebook_shows_a_run_as_run_html_does(trained: Path) -> None:
    assert Run(trained)._repr_html_() == run_html(Run(trained))


def test_a_run_is_shown_without_pillow(trained: Path) -> None:
    code = """import sys; sys.modules['PIL'] = None
from endoscope.viewer import run_html
from endoscope.runs import Run
print(run_html(Run(sys.argv[1])))"""
    done = subprocess.run([sys.executable, "-c", code, str(trained)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "worst 5 of 12 datapoints" in done.stdout


def test_an_evaluation_has_no_epoch(tmp_path: Path) -> None:
    shown = run_shown(runs.evaluation(tmp_path / "run"))
    assert "evaluation · finished" in shown.text
    assert shown.rows()[1][0] == "eval"
    assert ", the evaluation" in shown.text


def test_only_the_last_epochs_are_listed_with_a_note(tmp_path: Path) -> None:
    shown = run_shown(runs.training(tmp_path / "run", epochs=13))
    assert [row[0] for row in shown.rows()[1:11]] == [str(k) for k in range(3, 13)]
    assert "the last 10 of 13 epochs" in shown.text


def test_scores_of_classes_have_their_names_and_those_left_out_are_counted(tmp_path: Path) -> None:
    directions: dict[str, Direction] = {f"iou/{k}": "lower" for k in range(14)}
    names = [f"kind {k}" for k in range(14)]
    runs.write_about(tmp_path / "run", directions=directions, by_class=["iou"], class_names=names)
    rows = {0: dict.fromkeys(directions, runs.NAN), 1: dict.fromkeys(directions, 0.5)}
    runs.write_table(tmp_path / "run" / "epoch_0", rows, epoch=0, directions=directions)
    text = run_shown(tmp_path / "run").text
    assert "iou/kind 0" in text and "iou/0" not in text
    assert "iou/kind 11" in text and "iou/kind 12" not in text
    assert "12 of 14 scores" in text
    assert "worst 2 of 2 datapoints by iou/kind 0, epoch 0" in text


def test_numbers_are_written_as_in_the_viewer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    directions: dict[str, Direction] = {"iou/0": "higher", "loss": "lower"}
    runs.write_about(folder, directions=directions, by_class=["iou"], class_names=["bg", "car"])
    rows = {0: {"iou/0": runs.NAN, "loss": -runs.INF}, 1: {"iou/0": 0.5, "loss": 1.0}}
    runs.write_table(folder / "epoch_0", rows, epoch=0, directions=directions)
    runs.write_table(folder / "epoch_1", {0: {"loss": -0.5}}, epoch=1, directions=directions)
    shown = run_shown(folder).rows()[:3]
    assert shown == [["epoch", "iou/bg ↑", "loss ↓"], ["0", "NaN", "−∞"], ["1", "–", "−0.5"]]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (runs.live, "running"),
        (runs.crashed, "failed: RuntimeError: CUDA out of memory"),
        (runs.killed, "died; last heard from"),
        (runs.damaged, "config.json"),
        (runs.just_started, "no scores yet"),
        (runs.empty, "no scores yet"),
    ],
)
def test_unfinished_and_damaged_runs(make: Any, text: str, tmp_path: Path) -> None:
    shown = run_shown(make(tmp_path / "run"))
    assert shown.unsafe() == []
    assert text in shown.text
