"""Every screen shows what the run holds, in both themes and at both widths."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.viewer import runs
from tests.viewer.browser import test_accessibility as accessibility
from tests.viewer.browser.conftest import Opener, Serve, Viewer, expect, run_id

SCREENS = {
    "runs": "Runs",
    "curves": "Curves",
    "map": "Score map",
    "datapoint": "Datapoint",
    "time": "Through time",
    "compare": "Side by side",
    "storage": "Storage",
}


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 2560)])
def test_every_screen_opens(viewer: Opener, address: str, theme: str, width: int) -> None:
    opened = viewer(address, theme=theme, width=width)
    opened.open("/map?epoch=2&dp=4&metric=loss")
    for screen, title in SCREENS.items():
        page = opened.visit(screen)
        expect(page.locator("h1").first).to_contain_text(title)
        expect(page.locator("nav a[aria-current=page]")).to_have_text(title)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        wide = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{screen} scrolls sideways at {width} px"
        assert page.locator(".trouble").count() == 0
        accessibility.check(page, screen)


def test_runs_are_listed_and_ticked(first: Viewer) -> None:
    page = first.open("/runs")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("finished")
    expect(rows.nth(0)).to_contain_text("loss, accuracy")
    page.get_by_label("show second", exact=True).check()
    expect(page.locator("#controls .menu button .name")).to_have_text("first + 1")
    assert page.url.count("run=") == 2


def test_curves_show_every_score_and_a_click_sets_the_epoch(first: Viewer) -> None:
    page = first.open("/curves")
    for name in ["loss", "accuracy", "training loss", "training part"]:
        expect(page.locator(f'[data-series="{name}"] svg path.line')).to_have_count(1)
    box = page.locator('[data-series="loss"] svg .hit').bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#controls output")).to_have_text("1")
    page.get_by_role("link", name="Score map").click()
    assert "epoch=1" in page.url


def test_map_marks_nan_and_failures(first: Viewer) -> None:
    page = first.open("/map?epoch=1&metric=loss")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "12")
    expect(page.locator(".legend")).to_contain_text("NaN (1)")
    expect(page.locator(".legend")).to_contain_text("lower is better")
    assert "worst first; 1 fail" in (page.locator("canvas").get_attribute("aria-label") or "")  # 5 % of 12, rounded up
    expect(page.locator("section[aria-label=Datapoint]")).to_have_attribute("data-dp", "3")  # NaN comes first


def test_map_click_selects_and_keeps_the_place(first: Viewer) -> None:
    page = first.open("/map?metric=loss&order=index")
    page.locator("canvas").click(position={"x": 26 * 4 + 5, "y": 5})
    expect(page.locator("section[aria-label=Datapoint]")).to_have_attribute("data-dp", "4")
    assert "dp=4" in page.url
    page.locator("canvas").hover(position={"x": 5, "y": 5})
    expect(page.locator("#map-tip")).to_contain_text("datapoint 0")
    expect(page.locator("#map-tip")).to_contain_text("since epoch")  # asked for when somebody looks closer


def test_map_tip_is_of_the_map_under_it(first: Viewer) -> None:
    page = first.open("/map?metric=loss&order=index&epoch=2")
    tip = page.locator("#map-tip")
    page.locator("canvas").hover(position={"x": 5, "y": 5})
    expect(tip).to_contain_text("since epoch 1")
    before = tip.text_content()
    page.keyboard.press("ArrowLeft")  # the mouse rests
    expect(page.locator("canvas")).to_have_attribute("data-epoch", "1")
    expect(tip).to_contain_text("since epoch 0")
    assert tip.text_content() != before
    page.keyboard.press("ArrowRight")
    expect(tip).to_have_text(before or "")


def test_map_of_two_runs_has_two_canvases(first: Viewer) -> None:
    ids = [run_id(first, name) for name in ("first", "second")]
    page = first.open(f"/map?run={ids[0]}&run={ids[1]}&metric=loss&epoch=2")
    page.locator("canvas").nth(1).click(position={"x": 5, "y": 5})
    page.wait_for_url(f"**on={ids[1]}**")  # the run whose map was clicked
    expect(page.locator("canvas")).to_have_count(2)
    expect(page.locator(".legend")).to_contain_text("no score (2)")
    expect(page.locator("p.sub").first).to_contain_text("fail in both runs")


def test_worst_table_leads_to_the_datapoint(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=2")
    row = page.get_by_role("table", name="Worst datapoints").locator("tbody tr").nth(1)
    index = row.get_attribute("data-key")
    row.click()
    expect(page.locator("section[aria-label=Datapoint]")).to_have_attribute("data-dp", str(index))
    expect(row).to_have_class("pick on")


def test_datapoint_has_its_sections_and_each_debugger_its_name(first: Viewer) -> None:
    page = first.open("/datapoint?epoch=2&dp=4")
    for section in ["inputs", "labels", "meta_info", "outputs", "debugger"]:
        expect(page.locator(f"[data-section={section}]")).to_have_count(1)
    debuggers = page.locator("[data-section=debugger] [data-debugger]")
    names = {debuggers.nth(k).get_attribute("data-debugger") for k in range(debuggers.count())}
    assert {"head", "features", "video", "attention", "gradcam", "text", "activations/conv1"} <= names
    expect(page.locator("[data-debugger=features] .stats").first).to_contain_text("NaN")
    broken = page.locator("img").evaluate_all("all => all.filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    assert broken == []


def test_python_is_shown_and_copied(viewer: Opener, address: str) -> None:
    opened = viewer(address)
    page = opened.open("/datapoint?epoch=2&dp=4")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=opened.base)
    item = page.locator("[data-debugger=features] .item").first
    item.get_by_role("button", name="Python that loads").click()
    expect(item.locator("pre")).to_contain_text(".read(4, 'features')")
    item.get_by_role("button", name="Copy").click()
    expect(item.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == item.locator("pre").inner_text()


def test_channel_is_enlarged_and_closed(first: Viewer) -> None:
    page = first.open("/datapoint?epoch=2&dp=4")
    page.locator("[data-debugger=features] button.over").first.click(position={"x": 10, "y": 10})
    expect(page.locator("dialog h2")).to_contain_text("channel 0 (0 to 9)")
    page.get_by_role("button", name="next").click()
    expect(page.locator("dialog h2")).to_contain_text("channel 1 (0 to 9)")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_an_epoch_without_captures_links_to_one_with_captures(first: Viewer) -> None:
    page = first.open("/datapoint?epoch=0&dp=4")
    section = page.locator("[data-section=debugger]")
    section.get_by_role("link", name="2", exact=True).click()
    expect(page.locator("[data-debugger=features]")).to_have_count(1)
    assert "epoch=2" in page.url


def test_through_time_is_a_strip_with_differences(first: Viewer) -> None:
    page = first.open("/time?dp=4&epoch=2")
    expect(page.locator(".frame")).to_have_count(2)
    expect(page.locator('.frame[aria-current="true"]')).to_have_attribute("data-epoch", "2")
    page.locator('.frame[data-epoch="1"]').click()
    expect(page.locator('.frame[aria-current="true"]')).to_have_attribute("data-epoch", "1")
    assert "epoch=1" in page.url
    page.get_by_label("value to follow").select_option(index=0)
    expect(page.locator(".frame")).to_have_count(2)
    page.get_by_label("value to follow").select_option(label="text · caption")
    expect(page.locator(".frame .none").first).not_to_have_text("NaN")
    page = first.open("/time?dp=4&epoch=0")  # before the first one that was captured
    expect(page.locator('.frame[aria-current="true"]')).to_have_attribute("data-epoch", "1")


@pytest.mark.parametrize("mode", ["success", "epochs", "runs"])
def test_side_by_side(first: Viewer, mode: str) -> None:
    ids = "".join(f"&run={run_id(first, name)}" for name in ("first", "second"))
    page = first.open(f"/compare?mode={mode}&epoch=2&dp=4&metric=loss{ids}")
    expect(page.locator("[aria-label='what to compare'] [aria-pressed=true]")).to_have_count(1)
    expect(page.locator("article.layer").first).to_be_visible()
    expect(page.locator(".sidecard")).to_have_count(3)
    expect(page.locator(".sidecard[data-dp] .inputs img")).to_have_count(2)
    for picture in page.locator(".sidecard .inputs img").all():
        assert picture.evaluate("img => img.decode().then(() => img.naturalWidth)") > 0


def test_moving_onto_the_other_epoch_compares_with_another_one(first: Viewer) -> None:
    page = first.open("/compare?mode=epochs&epoch=2&other=1&dp=4")
    expect(page.locator(".sidecard[data-dp]").nth(1)).to_have_attribute("data-epoch", "1")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".sidecard[data-dp]").first).to_have_attribute("data-epoch", "1")
    expect(page.locator(".sidecard[data-dp]").nth(1)).to_have_attribute("data-epoch", "2")
    expect(page.locator(".notice:visible")).to_have_count(0)


def test_storage_counts_damage_found_meanwhile(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    page_file = runs.training(tmp_path / "run") / "epoch_2" / "outputs" / "page_0.safetensors"
    content = bytearray(page_file.read_bytes())
    content[-1] ^= 1
    page_file.write_bytes(content)
    opened = viewer(served(tmp_path))
    page = opened.open("/storage?dp=11&epoch=2")
    seen = page.locator(".totals div", has_text="damage found so far").locator("dd")
    expect(seen).to_have_text("0")
    expect(opened.visit("datapoint").locator("main")).to_contain_text("checksum")
    opened.visit("storage")
    expect(seen).to_have_text("1")
    expect(page.locator("details[data-folder='epoch_2/outputs'] .pill.bad")).to_have_text("1 damaged")


def test_storage_counts_pages(first: Viewer) -> None:
    page = first.open("/storage")
    expect(page.locator("details")).to_have_count(6)  # datapoints, outputs and debugger of two epochs, other files
    stored = "0.500 s with stored outputs or debug outputs (median of 2 epochs)"
    cost = f"A validation took {stored}, 0.500 s without (1 epoch)."
    expect(page.locator("main")).to_contain_text(cost)
    expect(page.locator("details[data-folder='other files']")).to_contain_text("progress.json")
    page.locator("summary").first.click()
    expect(page.locator("details[open] tbody tr")).to_have_count(1)
