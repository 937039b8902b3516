"""A folder with the pages of a debugger that was used without a trainer: its datapoints are found."""

from __future__ import annotations

import re
from pathlib import Path

from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, expect


def test_its_datapoints_are_listed_and_shown(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    indices = [5, 7, 40]
    runs.write_pages(tmp_path / "mine" / "epoch_4" / "debugger", {tuple(indices): runs.seen_of(indices)})
    opened = viewer(served(tmp_path))
    page = opened.open("/")
    expect(page.locator("main")).to_contain_text("3 captured datapoints, by index.")
    expect(page.locator("nav[aria-label='Captured datapoints'] a")).to_have_text(["5", "7", "40"])
    panel = page.locator("section[aria-label='Datapoint']")
    expect(panel.locator("h2").first).to_have_text("Datapoint 5")
    expect(panel.locator("[data-debugger='features'] img")).to_be_visible()
    page.locator("nav[aria-label='Captured datapoints'] a").nth(1).click()
    expect(panel.locator("h2").first).to_have_text("Datapoint 7")
    page.keyboard.press("j")
    expect(panel.locator("h2").first).to_have_text("Datapoint 40")
    page = opened.open("/runs")
    page.locator("tbody a", has_text="mine").click()
    expect(page).to_have_url(re.compile("/map"))
