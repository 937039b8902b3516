"""Runs that are empty, broken, hostile or just begun: said kindly, in place, and the rest works."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, expect

ALL = ["runs", "curves", "map", "datapoint", "time", "compare", "storage"]
PAYLOADS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "'\"><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}</title><script>alert(1)</script>",
]


def test_empty_folder(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    address = served(tmp_path)
    opened = viewer(address)
    for screen in ALL:
        page = opened.page
        page.goto(f"{opened.base}/{screen}")
        expect(page.locator("main")).to_contain_text("No runs yet")


def test_run_that_has_just_begun(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    runs.just_started(tmp_path / "run")
    address = served(tmp_path)
    opened = viewer(address)
    expect(opened.open("/map").locator("main")).to_contain_text("No scores yet")
    expect(opened.open("/curves").locator("main")).to_contain_text("No epoch is finished yet")
    expect(opened.open("/time").locator("main")).to_contain_text("Nothing to show yet")
    expect(opened.open("/storage").locator("main")).to_contain_text("No pages")
    expect(opened.open("/runs").locator("tbody")).to_contain_text("running")


def test_crashed_run_says_why(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    runs.crashed(tmp_path / "run")
    address = served(tmp_path)
    page = viewer(address).open("/runs")
    expect(page.locator("tbody .pill")).to_have_text("failed")
    expect(page.locator("tbody")).to_contain_text("CUDA out of memory")


def test_damaged_run_shows_the_rest(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    runs.damaged(tmp_path / "run")
    address = served(tmp_path)
    opened = viewer(address)
    expect(opened.open("/runs").locator(".problems li").first).to_be_visible()
    page = opened.open("/map?epoch=2")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "12")
    page.keyboard.press("ArrowLeft")  # an epoch whose scores cannot be read: what was captured is listed
    expect(page.locator("main")).to_contain_text("This epoch has no readable scores")
    expect(page.locator("p.sub").first).to_have_text("12 captured datapoints, by index.")
    page.keyboard.press("j")
    page.wait_for_url("**dp=1**")
    page = opened.open("/datapoint?epoch=1")
    expect(page.locator("[data-debugger=features]")).to_have_count(1)
    expect(opened.open("/storage").locator(".problems li").first).to_be_visible()
    # The browser's console tells that the damaged epoch, which the map asks for ahead, has no scores; nothing else.
    opened.errors = [error for error in opened.errors if "/api/map" not in error or "epoch=1" not in error]


def test_newest_scores_that_cannot_be_read(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    """The newest that can be read are shown; of the others what was captured."""
    folder = runs.training(tmp_path / "run")
    (folder / "epoch_2" / "validation_scores.json").write_text("damaged")
    opened = viewer(served(tmp_path))
    page = opened.open("/map")
    expect(page.locator("canvas")).to_have_attribute("data-epoch", "1")
    notice = page.locator(".notice:visible")
    expect(notice).to_have_text("The scores of epoch 2 cannot be read; epoch 1 is shown.")
    page.keyboard.press("j")
    page.wait_for_url("**dp=**")
    expect(notice).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("canvas")).to_have_attribute("data-epoch", "0")
    expect(notice).to_have_count(0)
    page = opened.open("/map?epoch=2")
    expect(notice).to_have_count(0)
    expect(page.locator("main")).to_contain_text("This epoch has no readable scores")
    expect(page.locator("main")).to_contain_text("12 captured datapoints")
    page = opened.open("/datapoint?epoch=2")
    expect(page.locator("[data-debugger=features]")).to_have_count(1)
    page = opened.open("/compare?epoch=2&mode=epochs")
    expect(page.locator("article.layer").first).to_be_visible()


def test_a_mask_is_shown_over_the_input_and_heads_in_pages(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run", indices=[0, 1])
    masks, attention = torch.zeros(2, 8, 8, dtype=torch.int64), torch.rand(2, 100, 4, 4).softmax(-1)
    masks[:, 2:5, 3:] = 2
    for name in ("datapoints", "epoch_2/debugger"):
        shutil.rmtree(folder / name)
    runs.write_pages(folder / "datapoints", {(0, 1): {"inputs": torch.rand(2, 3, 16, 16), "labels": masks}})
    runs.write_pages(folder / "epoch_2" / "debugger", {(0, 1): {"attention": {"attention": attention}}})
    page = viewer(served(tmp_path)).open("/datapoint?epoch=2&dp=1")
    label = page.locator("[data-section=labels]")
    expect(label.locator("figcaption")).to_have_text(["alone", "over the input"])
    expect(label.locator(".classes")).to_contain_text("ship")
    heads = page.locator("[data-debugger=attention]")
    expect(heads).to_contain_text("64 of 100 heads")
    heads.get_by_label("next heads").click()
    expect(heads).to_contain_text("heads 64 to 99 of 100")
    height = heads.locator("img").evaluate("img => img.decode().then(() => [img.naturalHeight, img.height])")
    assert height[0] == height[1]
    heads.get_by_label("enlarge a head").click(position={"x": 5, "y": 5})
    expect(page.locator("dialog h2")).to_have_text("attention, head 64 (0 to 99)")


def test_run_without_debugger(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    runs.large(tmp_path / "run", datapoints=50, epochs=2)
    address = served(tmp_path)
    opened = viewer(address)
    page = opened.open("/map")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "50")
    expect(page.locator("[data-section=debugger]")).not_to_be_empty()
    expect(opened.open("/time").locator("main")).to_contain_text("Nothing captured")


def test_names_and_labels_are_text(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    text = " ".join(PAYLOADS)
    runs.hostile(tmp_path / "run", text)
    address = served(tmp_path)
    opened = viewer(address)
    page = opened.open("/datapoint")
    expect(page.locator("[data-section=debugger] h3").first).to_have_text(text)
    for screen in ALL:
        page = opened.visit(screen)
        assert page.locator("main img[src=x], main script, main svg[onload], [onerror]").count() == 0
    # An alert would have been noted as an error by the fixture.


def test_an_alert_would_be_noted(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    address = served(tmp_path)
    opened = viewer(address)
    opened.open("/runs").evaluate("() => alert(1)")
    assert opened.errors == ["dialog: 1"]
    opened.errors.clear()


def test_a_failed_debugger_is_reported_with_the_datapoint(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    runs.write_epoch(folder, 3, capture=False)
    seen = {(0, 1): {"conv": {"mean": torch.ones(2, 3)}}}
    notes = {"failures": {"mine": "ValueError: <b>no</b>"}, "absent": {"head": "the layer did not run"}}
    runs.write_pages(folder / "epoch_3" / "debugger", seen, notes=notes)
    page = viewer(served(tmp_path)).open("/datapoint?epoch=3&dp=0")
    rows = page.get_by_role("table", name="Notes").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("ValueError: <b>no</b>")
    expect(rows.nth(1)).to_contain_text("the layer did not run")
