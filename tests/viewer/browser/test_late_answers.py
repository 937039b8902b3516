"""Keys pressed faster than the server answers: what is shown is what was asked for last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, Viewer, expect

DATAPOINT = "section[aria-label=Datapoint]"


class Held:
    """Answers that were given and are kept back until `release`."""

    def __init__(self, page: Any, pattern: str, *, most: int = 100) -> None:
        self._page = page
        self._pattern = pattern
        self._most = most
        self.kept: list[tuple[Any, Any]] = []
        page.route(pattern, self._hold)

    def _hold(self, route: Any) -> None:
        if len(self.kept) >= self._most:
            route.continue_()
            return
        self.kept.append((route, route.fetch()))

    def wait(self, n: int = 1) -> None:
        for _ in range(100):
            if len(self.kept) >= n:
                return
            self._page.wait_for_timeout(50)
        raise AssertionError(f"{self._pattern} was asked for {len(self.kept)} times, not {n}")

    def release(self) -> None:
        for route, response in self.kept:
            route.fulfill(response=response)
        self._page.wait_for_timeout(300)


def test_map_and_datapoint_of_a_passed_epoch_stay_away(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=2&dp=4&order=index")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "2")
    page.wait_for_timeout(600)  # the maps beside this one were asked for ahead
    held = Held(page, "**/api/datapoint?*epoch=1&*")
    page.keyboard.press("ArrowLeft")
    held.wait()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "0")
    held.release()
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "0")
    expect(page.locator(f"{DATAPOINT} p.sub")).to_contain_text("epoch 0")


def test_map_of_a_passed_metric_stays_away(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=2&dp=4&order=index")
    held = Held(page, "**/api/map?*metric=accuracy*")
    page.get_by_label("metric").select_option("accuracy")
    held.wait()
    page.get_by_label("metric").select_option("loss")
    held.release()
    expect(page.locator(".legend")).to_contain_text("loss: lower is better")
    assert "loss" in (page.locator("canvas").get_attribute("aria-label") or "")
    assert page.get_by_role("table", name="Worst datapoints").locator("th").nth(3).inner_text() == "loss"


@pytest.mark.parametrize(
    ("screen", "pattern", "shown"),
    [
        ("compare?mode=epochs&other=1", "**/api/compare?*dp=5*", ".sidecard[data-dp]"),
        ("time?", "**/api/time?*dp=5*", "p.sub"),
    ],
)
def test_a_passed_datapoint_stays_away(first: Viewer, screen: str, pattern: str, shown: str) -> None:
    page = first.open(f"/{screen}&dp=4&epoch=2&metric=loss&order=index")
    expect(page.locator("main")).to_contain_text("atapoint 4")
    held = Held(page, pattern)
    page.keyboard.press("j")
    held.wait()
    page.keyboard.press("j")
    expect(page.locator("main")).to_contain_text("atapoint 6")
    page.wait_for_timeout(300)
    pictures = page.locator("main img").evaluate_all("all => all.map(i => i.src)")
    assert pictures and all("dp=6" in src for src in pictures)
    held.release()
    assert page.locator("main img").evaluate_all("all => all.map(i => i.src)") == pictures
    expect(page.locator(shown).first).to_contain_text("atapoint 6") if screen.startswith("time") else None


def test_an_older_answer_to_the_same_question_stays_away(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    """The scores are written again while the first answer is under way: that of the second question holds."""
    run = runs.training(tmp_path / "run")
    opened = viewer(served(tmp_path))
    page = opened.open("/runs")
    page.wait_for_timeout(1300)  # the stamp is known
    held = Held(page, "**/api/map?*", most=1)
    opened.page.locator('nav a[href^="/map"]').click()
    held.wait()
    page.wait_for_timeout(1300)
    runs.write_epoch(run, 2, rows={k: {"loss": 1.0 + k, "accuracy": 1.0} for k in range(7)}, capture=False)
    expect(page.locator("canvas")).to_have_attribute("data-cells", "7")
    held.release()
    expect(page.locator("canvas")).to_have_attribute("data-cells", "7")


def test_two_quick_keys_are_two_steps(first: Viewer) -> None:
    page = first.open("/datapoint?metric=loss&epoch=2&dp=4&order=index")
    held = Held(page, "**/api/map?*", most=1)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.wait_for_timeout(200)
    held.release()
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", "6")


def test_a_held_key_is_one_step_of_the_history(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    runs.large(tmp_path / "run", datapoints=30, epochs=12)
    opened = viewer(served(tmp_path))
    page = opened.open("/curves")
    page.get_by_role("navigation").get_by_role("link", name="Score map").click()
    expect(page.locator("canvas")).to_have_attribute("data-cells", "30")
    before = page.evaluate("() => history.length")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#controls output")).to_have_text("2")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "2")
    assert "epoch=2" in page.url
    assert page.evaluate("() => history.length") == before + 1
    page.go_back()
    expect(page.locator("#controls output")).to_have_text("11")
