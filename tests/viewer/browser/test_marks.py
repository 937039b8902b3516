"""Failures on cells of every size, colour ranges and their legends, and indices that no double holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, Viewer, expect, run_id

DATAPOINT = "section[aria-label=Datapoint]"

# Two cells of the same value, of which the second fails, painted in cells of a size: how much they differ in light.
PAINTED = """async ([size, value]) => {
  const { paint, palette, layout } = await import('/static/scoremap.js');
  const plan = { ...layout(1, 100, 100), size, columns: 2, rows: 1, gap: size >= 8 ? 2 : size >= 4 ? 1 : 0 };
  const canvas = document.createElement('canvas');
  paint(canvas, plan, { values: [value, value], fails: [0, 1], range: [0, 1], direction: 'lower' }, palette(), 1);
  const inner = size - plan.gap;
  const light = (x, y) => {
    const c = [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)
      .map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  };
  const ratios = [];
  for (let y = 0; y < inner; y += 1) for (let x = 0; x < inner; x += 1) {
    const [a, b] = [light(x, y), light(size + x, y)];
    ratios.push((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return { best: Math.max(...ratios), marked: ratios.filter(r => r > 1.5).length, of: ratios.length };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 26])
def test_a_failure_is_seen_on_cells_of_every_size(viewer: Opener, address: str, theme: str, size: int) -> None:
    page = viewer(address, theme=theme).open("/runs")
    worst: dict[str, Any] = page.evaluate(PAINTED, [size, 1.0])
    assert worst["best"] > (3 if theme == "light" else 1.6)  # light and dark differ, not only the hue
    assert worst["marked"] >= 1
    good: dict[str, Any] = page.evaluate(PAINTED, [size, 0.0])
    assert good["best"] > 3
    if size > 2:
        assert worst["marked"] < worst["of"]  # its value is seen too


def test_infinite_scores_have_their_own_mark(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    rows = {k: {"loss": [0.5, runs.INF, 1.0, runs.NAN][k % 4]} for k in range(8)}
    runs.write_epoch(runs.training(tmp_path / "run", epochs=1), 0, rows=rows, capture=False)
    page = viewer(served(tmp_path)).open("/map?metric=loss&order=index")
    expect(page.locator(".legend")).to_contain_text("infinite (2)")
    expect(page.locator(".legend")).to_contain_text("NaN (2)")
    colours = page.evaluate("""() => {
      const canvas = document.querySelector('canvas');
      const at = k => String([...canvas.getContext('2d').getImageData(26 * k + 2, 20, 1, 1).data]);
      return [at(0), at(1), at(2)];
    }""")
    assert len(set(colours)) == 3


def test_the_legend_omits_infinite_scores_when_there_are_none(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=1")
    expect(page.locator(".legend")).to_contain_text("NaN (1)")
    assert "infinite" not in page.locator(".legend").inner_text()


# ---------------------------------------------------------------- legends of pictures
def test_both_sides_have_one_range_and_say_so(first: Viewer) -> None:
    page = first.open("/compare?mode=epochs&other=1&epoch=2&dp=4&metric=loss")
    layer = page.locator("article.layer", has=page.locator("img")).filter(has_text="feature_map").first
    scales = layer.locator(".scale:not(.difference)")
    expect(scales).to_have_count(2)
    texts = scales.evaluate_all("all => all.map(s => s.querySelector('.ramp').textContent)")
    assert texts[0] == texts[1]
    for k in range(2):
        expect(scales.nth(k)).to_contain_text("same range on both sides")
    sources = layer.locator("img").evaluate_all("all => all.map(i => new URL(i.src).searchParams)")
    assert len(sources) == 3
    ranges = layer.locator("img").evaluate_all(
        "all => all.slice(0, 2).map(i => new URL(i.src).searchParams).map(q => [q.get('low'), q.get('high')].join())"
    )
    assert ranges[0] == ranges[1] != ","


@pytest.mark.parametrize("screen", ["compare?mode=epochs&other=1&", "time?"])
def test_a_difference_has_a_legend_with_zero_in_the_middle(first: Viewer, screen: str) -> None:
    page = first.open(f"/{screen}epoch=2&dp=4&metric=loss")
    ramp = page.locator(".scale.difference .ramp").first
    expect(ramp).to_be_visible()
    low, middle, high = (part.strip() for part in ramp.evaluate("e => e.innerText").split("\n") if part.strip())
    assert (low[0], middle, high[0]) == ("−", "0", "+")
    assert low[1:] == high[1:]
    assert ramp.locator(".bar.half").count() == 2


def test_a_picture_without_a_finite_value_has_no_bar(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    run = runs.training(tmp_path / "run", epochs=1)
    maps = torch.full((2, 3, 4, 4), runs.NAN)
    maps[1] = 1.0
    maps[1, 0, 0, 0] = runs.INF
    maps[1, 0, 0, 1] = 0.0
    runs.write_pages(run / "epoch_0" / "debugger", {(0, 1): {"conv": {"feature_map": maps}}})
    opened = viewer(served(tmp_path))
    page = opened.open("/datapoint?dp=0&metric=loss")
    scale = page.locator("[data-debugger=conv] .scale")
    expect(scale).to_contain_text("no finite value")
    expect(scale).to_contain_text("NaN")
    assert scale.locator(".bar").count() == 0
    assert "Inf" not in scale.inner_text()
    page = opened.open("/datapoint?dp=1&metric=loss")
    expect(scale.locator(".bar")).to_have_count(1)
    expect(scale).to_contain_text("Inf")
    expect(scale.locator(".swatch")).to_have_count(1)
    assert "NaN" not in scale.inner_text()


# ---------------------------------------------------------------- large indices
def test_an_index_that_no_double_holds(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    large = 2**53 + 1
    indices = [large - 1, large, large + 1, 7]
    rows = {k: {"loss": float(n)} for n, k in enumerate(sorted(indices))}
    run = runs.training(tmp_path / "run", epochs=1, indices=sorted(indices))
    runs.write_epoch(run, 0, rows=rows, capture=True, indices=sorted(indices))
    opened = viewer(served(tmp_path))
    page = opened.open("/map?metric=loss&order=index")
    page.locator("canvas").click(position={"x": 26 * 2 + 5, "y": 5})
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(large))
    assert f"dp={large}" in page.url
    expect(page.locator(f"{DATAPOINT} h2").first).to_have_text(f"Datapoint {large}")
    page.keyboard.press("j")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(large + 1))
    page.keyboard.press("/")
    page.keyboard.type(str(large))
    page.keyboard.press("Enter")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(large))
    expect(page.locator(".cell-on")).to_have_attribute("style", "left: 52px; top: 0px; width: 24px; height: 24px;")
    assert str(large) in page.get_by_role("table", name="Worst datapoints").inner_text()
    for screen in ("time", "compare"):
        page = opened.open(f"/{screen}?dp={large}&metric=loss&mode=success&run={run_id(opened, 'run')}")
        expect(page.locator("main")).to_contain_text(str(large))
        assert page.locator(".trouble").count() == 0


def test_a_too_large_index_is_refused_with_a_message(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=2")
    page.keyboard.press("/")
    page.keyboard.type("9" * 25)
    page.keyboard.press("Enter")
    expect(page.locator(f"{DATAPOINT} .trouble")).to_contain_text("is not a 64-bit integer")
    first.errors.clear()  # the browser tells the 400 in its console
