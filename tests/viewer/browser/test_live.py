"""A run that goes on while the page is open shows its growth by itself, within two seconds."""

from __future__ import annotations

import time
from pathlib import Path

from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, expect

SOON_MS = 2000


def test_new_epoch_appears(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    run = runs.live(tmp_path / "run", epochs=2)
    address = served(tmp_path)
    page = viewer(address).open("/map?metric=loss")
    expect(page.locator("#controls output")).to_have_text("1")
    expect(page.locator(".live")).to_have_text("live")
    page.wait_for_timeout(1500)  # the page has asked for the stamp
    runs.write_epoch(run, 2)
    runs.write_progress(run, 3)
    written = time.monotonic()
    expect(page.locator("#controls output")).to_have_text("2", timeout=SOON_MS)
    expect(page.locator("section[aria-label=Datapoint]")).to_have_attribute("data-epoch", "2", timeout=SOON_MS)
    assert time.monotonic() - written < SOON_MS / 1000 + 0.5


def test_held_epoch_stays(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    run = runs.live(tmp_path / "run", epochs=2)
    address = served(tmp_path)
    page = viewer(address).open("/curves?epoch=0")
    expect(page.locator("svg circle").first).to_be_attached()
    page.wait_for_timeout(1500)
    before = page.locator('[data-series="loss"] circle').count()
    runs.write_epoch(run, 2)
    runs.write_progress(run, 3)
    expect(page.locator('[data-series="loss"] circle')).to_have_count(before + 1, timeout=SOON_MS)
    expect(page.locator("#controls output")).to_have_text("0")
    expect(page.locator(".live")).to_contain_text("paused")


def test_first_run_of_an_empty_folder_appears(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    address = served(tmp_path)
    page = viewer(address).open("/runs")
    expect(page.locator("main")).to_contain_text("No runs yet")
    runs.training(tmp_path / "new")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=4000)
