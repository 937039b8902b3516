"""Ids of tokens are a row of tokens, and rows of a matrix that has one for each token say which."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, expect

from endoscope.values import per_datapoint


def test_ids_and_rows_have_the_texts_of_their_tokens(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    words = ["[CLS]", "<b>", "seen", "[SEP]"]
    folder = tmp_path / "run"
    runs.write_about(folder)
    inputs = {
        "inputs": {"input_ids": torch.tensor([[101, 7, 2003, 102]]), "tokens": per_datapoint([words])},
        "labels": torch.tensor([1]),
    }
    runs.write_pages(folder / "datapoints", {(0,): inputs})
    runs.write_pages(folder / "epoch_0" / "outputs", {(0,): {"outputs": torch.rand(1, 4, 32)}})
    runs.write_table(folder / "epoch_0", {0: {"loss": 1.0}}, epoch=0)
    page = viewer(served(tmp_path)).open("/map")
    expect(page.locator("[data-renderer='tokens'] .tokens span")).to_have_text(
        ["[CLS] 101", "<b> 7", "seen 2003", "[SEP] 102"]
    )
    expect(page.locator("[data-section='outputs'] [data-renderer='heatmap'] .tokens span")).to_have_text(words)


def test_an_enlarged_head_has_its_tokens_at_rows_and_columns(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    words = ["[CLS]", "<b>", "seen", "[SEP]"]
    folder = tmp_path / "run"
    runs.write_about(folder)
    runs.write_pages(folder / "datapoints", {(0,): {"inputs": {"tokens": per_datapoint([words])}}})
    attention = torch.rand(1, 2, 4, 6).softmax(-1)  # four queries, six keys
    runs.write_pages(folder / "epoch_0" / "debugger", {(0,): {"attention": {"attention": attention}}})
    runs.write_table(folder / "epoch_0", {0: {"loss": 1.0}}, epoch=0)
    page = viewer(served(tmp_path)).open("/map")
    page.get_by_label("enlarge a head").click(position={"x": 5, "y": 5})
    dialog = page.locator("dialog")
    expect(dialog.locator(".rows span")).to_have_text(words)
    expect(dialog.locator(".columns span")).to_have_count(0)
    image = dialog.locator("img")
    box = image.bounding_box()
    assert box is not None
    image.hover(position={"x": box["width"] * 3.5 / 6, "y": box["height"] * 2.5 / 4})
    expect(dialog).to_contain_text("query 2 “seen” → key 3")
    tops = [span.bounding_box() for span in dialog.locator(".rows span").all()]
    for row, top in enumerate(tops):  # each label stands at the middle of its row
        assert top is not None
        middle = top["y"] + top["height"] / 2
        assert abs(middle - (box["y"] + box["height"] * (row + 0.5) / 4)) < 2
