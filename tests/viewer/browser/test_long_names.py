"""Runs with long names: nothing runs out of its panel or over something else, and each run can be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Viewer, expect, run_id

NAMES = [f"{'resnet18_lr0.01_' * 5}"[:79] + end for end in "abc"]
LARGE = 2**62  # indices of 19 digits
OUTSIDE = """[...document.querySelectorAll("main, .panel")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.tagName} ${one.getAttribute("aria-label")} ${one.scrollWidth - one.clientWidth}`)"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three runs with names of 80 characters."""
    root = tmp_path_factory.mktemp("named")
    for name in NAMES:
        assert len(name) == 80
        runs.training(root / name, epochs=2)
    with runs.serving(root) as address:
        yield address


def every_run(opened: Viewer) -> str:
    return "".join(f"&run={run_id(opened, name)}" for name in NAMES)


def outside(page: Any) -> Any:
    """What is wider than its place, of those that do not scroll by themselves."""
    return page.evaluate(OUTSIDE)


@pytest.mark.parametrize("screen", ["runs", "curves", "map", "datapoint", "time", "compare", "storage"])
@pytest.mark.parametrize("width", [1024, 1280])
def test_nothing_leaves_its_panel(viewer: Opener, named: str, screen: str, width: int) -> None:
    opened = viewer(named, width=width)
    page = opened.open(f"/{screen}?metric=loss&dp=4{every_run(opened)}")
    if screen == "map":
        expect(page.get_by_role("table", name="Worst datapoints")).to_be_visible()
    if screen == "compare":
        expect(page.locator("article.layer").first).to_be_visible()
    assert outside(page) == []


def test_twin_what_leaves_its_panel_is_seen(viewer: Opener, named: str) -> None:
    page = viewer(named).open("/runs")
    page.evaluate("document.querySelector('.panel').style.width = '2000px'")
    assert outside(page) != []


def test_side_cards_do_not_lie_over_each_other(viewer: Opener, named: str) -> None:
    opened = viewer(named)
    page = opened.open(f"/compare?mode=runs&metric=loss&dp=4&epoch=1{every_run(opened)}")
    expect(page.locator(".sidecard")).to_have_count(3)
    cards = page.locator(".sidecard").evaluate_all(
        """cards => cards.map(card => {
          const boxes = [card, ...card.querySelectorAll("*")].map(one => one.getBoundingClientRect());
          return [Math.min(...boxes.map(box => box.left)), Math.max(...boxes.map(box => box.right))];
        })"""
    )
    for (_, right), (left, _) in pairwise(cards):
        assert right <= left
    for name in NAMES[:2]:
        expect(page.locator(".sidecard h2", has_text=name)).to_be_visible()  # the whole of it


@pytest.mark.parametrize("screen", ["map", "datapoint", "compare"])
def test_third_run_can_be_chosen(viewer: Opener, named: str, screen: str) -> None:
    opened = viewer(named)
    page = opened.open(f"/{screen}?mode=epochs&metric=loss&dp=4{every_run(opened)}")
    group = page.get_by_role("group", name="run of the datapoint")
    third = group.get_by_role("button").nth(2)
    inside, around = third.bounding_box(), group.bounding_box()
    assert inside["width"] > 80
    assert inside["x"] + inside["width"] <= around["x"] + around["width"] + 1
    third.click()
    expect(third).to_have_attribute("aria-pressed", "true")


def test_long_indices_scroll_in_the_box_of_their_table(viewer: Opener, served: Any, tmp_path: Path) -> None:
    indices = [LARGE + k for k in range(4)]
    for name in NAMES[:2]:
        runs.training(tmp_path / name, epochs=1, indices=indices)
    opened = viewer(served(tmp_path))
    page = opened.open(f"/map?metric=loss{''.join(f'&run={run_id(opened, name)}' for name in NAMES[:2])}")
    expect(page.get_by_role("table", name="Worst datapoints")).to_contain_text(str(LARGE))
    assert outside(page) == []


def test_small_window_keeps_the_controls_apart(viewer: Opener, named: str) -> None:
    page = viewer(named, width=390).open("/map?metric=loss")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    index, metric = (page.locator(one).bounding_box() for one in ("#tools input", "#controls select"))
    assert index["y"] + index["height"] <= metric["y"]
