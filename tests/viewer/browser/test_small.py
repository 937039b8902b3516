"""What is drawn small, through time and side by side, says all that it leaves out; and whole numbers are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, Viewer, expect

G = torch.Generator().manual_seed(0)


def captured(folder: Path, *seen: dict[str, Any]) -> Path:
    """A run of which one datapoint was captured, in as many epochs."""
    runs.write_about(folder)
    mask = torch.randint(0, 3, (1, 8, 8), generator=G)
    about = {
        "inputs": {name: torch.rand(1, 3, 8, 8) for name in "abc"},
        "labels": mask,
        "meta_info": {"seed": 12345680},
    }
    runs.write_pages(folder / "datapoints", {(0,): about})
    for epoch, one in enumerate(seen):
        runs.write_pages(folder / f"epoch_{epoch}" / "debugger", {(0,): one})
        runs.write_table(folder / f"epoch_{epoch}", {0: {"loss": 1.0}}, epoch=epoch)
    return folder


def opened(viewer: Opener, served: Serve, folder: Path) -> Viewer:
    return viewer(served(folder.parent))


def seen(**values: Any) -> dict[str, Any]:
    return {name: {name: value} for name, value in values.items()}


def test_notes_appear_beside_small_pictures(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    maps, volume = torch.rand(1, 200, 8, 8, generator=G), torch.rand(1, 2, 5, 8, 8, generator=G)
    folder = captured(tmp_path / "run", *(seen(maps=maps * k, volume=volume * k) for k in (1, 2)))
    window = opened(viewer, served, folder)
    page = window.open("/compare?mode=epochs")
    for name, said in (("maps", "64 of 200 channels at once"), ("volume", "slice 2 of 5 (the middle one)")):
        layer = page.locator("article.layer", has=page.get_by_role("heading", name=name, exact=True))
        expect(layer.locator(".note", has_text=said)).to_have_count(2)
    expect(page.locator(".sidecard .note", has_text="2 of 3 inputs")).to_have_count(2)
    expect(page.locator(".sidecard figcaption").first).to_have_text("input a")
    expect(page.locator(".sidecard figcaption", has_text="label")).to_have_count(2)
    page = window.open("/time")
    expect(page.locator(".stage .note", has_text="64 of 200 channels at once")).to_have_count(2)


def test_classes_have_names_and_no_mean(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    masks = torch.randint(0, 3, (2, 1, 8, 8), generator=G)
    window = opened(viewer, served, captured(tmp_path / "run", *(seen(mask=one) for one in masks)))
    for place, within in (("/time", ".stage"), ("/compare?mode=epochs", "article.layer")):
        page = window.open(place)
        expect(page.locator(f"{within} .classes")).to_have_count(2)
        expect(page.locator(f"{within} .classes").first).to_contain_text(runs.CLASS_NAMES[0])
        expect(page.locator(within).first).not_to_contain_text("mean")
    expect(page.locator("h2", has_text="Range over epochs")).to_have_count(0)


def test_numbers_have_a_difference_and_all_their_digits(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    window = opened(viewer, served, captured(tmp_path / "run", *(seen(n=value) for value in (4.5, 20000001.0))))
    page = window.open("/compare?mode=epochs&epoch=1")
    layer = page.locator("article.layer", has=page.get_by_role("heading", name="n", exact=True))
    expect(layer.locator(".scalar")).to_have_text(["20000001", "4.5000", "2.0000e7"])
    page = window.open("/map")
    expect(page.locator("[data-section='meta_info']")).to_contain_text("12345680")


def test_turning_a_page_leaves_it_in_view(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    heads = torch.rand(1, 70, 16, 16, generator=G).softmax(-1)
    page = opened(viewer, served, captured(tmp_path / "run", seen(attention=heads))).open("/map")
    on = page.get_by_label("next heads")
    on.scroll_into_view_if_needed()
    sheet = page.locator(".sprite")
    box, picture = sheet.bounding_box(), sheet.locator("img").bounding_box()
    assert box is not None and picture is not None
    assert abs(box["height"] - picture["height"]) <= 1  # no gap below a picture that was shrunk
    on.click()
    expect(page.locator(".under", has_text="heads 64 to 69 of 70")).to_be_visible()
    expect(on).to_be_in_viewport()
    expect(sheet.locator("img")).to_be_in_viewport()
