"""Debug outputs and runs in a notebook: HTML that needs nothing else and runs nothing."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.viewer import runs
from tests.viewer.payloads import PAYLOADS

import endoscope
from endoscope.errors import DatapointNotFoundError, PageError
from endoscope.report import display, html
from endoscope.report.display import display_debug_outputs, load_debug_outputs
from endoscope.report.notebook import run_html
from endoscope.runs import Run
from endoscope.runs.fields import Direction

TAGS = {"div", "h3", "h4", "table", "tr", "th", "td", "img", "code", "pre", "svg", "polyline", "rect", "em", "ul", "li"}
ATTRIBUTES = {
    "style", "alt", "src", "viewbox", "width", "height", "points", "fill", "stroke", "stroke-width", "x", "y"
}  # fmt: skip


class Seen(HTMLParser):
    """What a browser would make of a text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def harmless(self) -> bool:
        known = all(tag in TAGS and {*attributes} <= ATTRIBUTES for tag, attributes in self.tags)
        return known and all(
            (at.get("src") or "data:image/png;base64,").startswith("data:image/png") for _, at in self.tags
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return runs.training(tmp_path / "run")


def test_the_names_of_the_seed() -> None:
    assert load_debug_outputs is endoscope.load_debug_outputs


def test_every_debugger_and_its_values_are_there(folder: Path) -> None:
    seen = Seen(display_debug_outputs(folder / "epoch_1", 4)._repr_html_())
    assert seen.harmless()
    for name in load_debug_outputs(folder / "epoch_1")[4]:
        assert name in seen.text
    assert "1×10×4×4 · float32 · min" in seen.text
    assert "1 NaN, 0 infinite" in seen.text
    pictures = [at["src"] or "" for tag, at in seen.tags if tag == "img"]
    assert len(pictures) == 6  # the map of gradcam alone, and over the input
    for src in pictures:
        Image.open(io.BytesIO(base64.b64decode(src.partition(",")[2]))).verify()


def test_a_mask_has_both_pictures_and_the_colours_of_its_classes(folder: Path) -> None:
    mask = torch.zeros(2, 8, 8, dtype=torch.int64)
    mask[:, :4] = 1
    runs.write_pages(folder / "epoch_1" / "debugger", {(0, 1): {"seg": {"mask": mask}}})
    seen = Seen(display_debug_outputs(folder / "epoch_1", 1)._repr_html_())
    assert seen.harmless()
    pictures = [at for tag, at in seen.tags if tag == "img"]
    assert [at["alt"] for at in pictures] == ["mask, 1×8×8, alone", "mask, 1×8×8, over the input"]
    assert pictures[0]["src"] != pictures[1]["src"]
    assert len({at["fill"] for tag, at in seen.tags if tag == "rect"}) == 2
    for words in ("alone", "over the input", "cat", "50.0 %"):
        assert words in seen.text


def test_a_colour_that_is_none_is_not_written() -> None:
    for colour in ("url(http://x.example)", '#000000"/><script>', None, 7):
        swatch = Seen(html.Swatch(colour, "<b>").html)
        assert [tag for tag, _ in swatch.tags] == ["svg"]
        assert swatch.text.strip() == "<b>"
    assert "rect" in html.Swatch("#0065b0", 1).html


def test_short_rows_of_a_table_are_filled() -> None:
    assert html.tidy(["class", "name", "x"], [[1, "1"], [2]]) == (["class", "x"], [[1, None], [2, None]])


def test_the_folder_may_be_the_debuggers_own_or_an_evaluation(folder: Path, tmp_path: Path) -> None:
    inside = display_debug_outputs(folder / "epoch_1" / "debugger", 4)._repr_html_()
    assert inside == display_debug_outputs(folder / "epoch_1", 4)._repr_html_()
    assert "Datapoint 4" in display_debug_outputs(runs.evaluation(tmp_path / "eval"), 4)._repr_html_()


def test_captures_outside_of_a_run(tmp_path: Path) -> None:
    runs.write_pages(tmp_path / "captures", {(0, 1): runs.seen_of([0, 1])})
    assert Seen(display_debug_outputs(tmp_path / "captures", 1)._repr_html_()).harmless()


def test_what_is_not_there_is_an_error(folder: Path) -> None:
    with pytest.raises(DatapointNotFoundError, match="no datapoint 99"):
        display_debug_outputs(folder / "epoch_1", 99)
    with pytest.raises(PageError, match="there is no folder"):
        display_debug_outputs(folder / "epoch_77", 1)


def test_a_saved_page_opens_by_itself(folder: Path, tmp_path: Path) -> None:
    display_debug_outputs(folder / "epoch_1", 4).save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html><meta charset")
    assert "http" not in text


def test_a_damaged_debugger_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = runs.damaged(tmp_path / "run") / "epoch_1"
    texts = [Seen(display_debug_outputs(folder, dp)._repr_html_()).text for dp in runs.INDICES]
    assert any("checksum" in text for text in texts)
    assert all("feature_map" in text or "checksum" in text for text in texts)


def test_pictures_are_bounded_with_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "MOST_PICTURES", 2)
    seen: dict[str, Any] = {"many": {f"map{k}": torch.rand(2, 3, 4, 4) for k in range(4)}}
    runs.write_pages(tmp_path / "captures", {(0, 1): seen})
    html = display_debug_outputs(tmp_path / "captures", 0)._repr_html_()
    assert html.count("<img") == 2
    assert html.count("not drawn: 2 pictures are shown at once") == 2


def test_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "MOST_BYTES", 1 << 20)
    runs.write_pages(tmp_path / "captures", {(0, 1): {"big": torch.zeros(2, 1 << 19), "small": torch.zeros(2, 3)}})
    html = display_debug_outputs(tmp_path / "captures", 0)._repr_html_()
    assert "2 MB of tensors; at most 1 MB are displayed" in html
    assert "<polyline" in html


@pytest.mark.parametrize("k", range(len(PAYLOADS)))
def test_text_of_a_run_is_escaped(k: int, tmp_path: Path) -> None:
    text = PAYLOADS[k]
    folder = runs.hostile(tmp_path / "run", text)
    shown = Seen(display_debug_outputs(folder / "epoch_0", 0)._repr_html_())
    assert shown.harmless()
    assert text in shown.text
    whole = Seen(run_html(Run(folder)))
    assert whole.harmless()
    assert text in whole.text


def test_twin_an_unescaped_text_is_seen() -> None:
    assert not Seen("<div><script>alert(1)</script></div>").harmless()
    assert not Seen('<div onclick="x">a</div>').harmless()
    assert not Seen('<img src="http://x.example">').harmless()


# ---------------------------------------------------------------- a run
def test_a_run_shows_its_scores_and_its_worst(folder: Path) -> None:
    seen = Seen(run_html(Run(folder)))
    assert seen.harmless()
    assert "training · finished · 3 epochs" in seen.text
    assert "worst 5 of 12 datapoints by loss, epoch 2" in seen.text


def test_scores_of_classes_have_their_names_and_those_left_out_are_counted(tmp_path: Path) -> None:
    directions: dict[str, Direction] = {f"iou/{k}": "lower" for k in range(14)}
    names = [f"kind {k}" for k in range(14)]
    runs.write_about(tmp_path / "run", directions=directions, by_class=["iou"], class_names=names)
    rows = {0: dict.fromkeys(directions, runs.NAN), 1: dict.fromkeys(directions, 0.5)}
    runs.write_table(tmp_path / "run" / "epoch_0", rows, epoch=0, directions=directions)
    text = Seen(run_html(Run(tmp_path / "run"))).text
    assert "iou/kind 0" in text and "iou/0" not in text
    assert "iou/kind 11" in text and "iou/kind 12" not in text
    assert "12 of 14 scores" in text
    assert "worst 2 of 2 datapoints by iou/kind 0, epoch 0" in text
    assert "NaN" in text and "nan" not in text


@pytest.mark.parametrize(
    "make", [runs.evaluation, runs.live, runs.crashed, runs.killed, runs.damaged, runs.just_started, runs.empty]
)
def test_a_run_of_any_kind(make: Any, tmp_path: Path) -> None:
    assert Seen(run_html(Run(make(tmp_path / "run")))).harmless()
