"""Forms as HTML, piece by piece."""

from __future__ import annotations

import base64
import io
import re
from importlib import resources
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.report.parsed import Parsed

from endoscope.report import html, score_map
from endoscope.runs.ranking import Column


def test_text_that_is_not_a_colour_is_not_written() -> None:
    for colour in ("url(http://x.example)", '#000000"/><script>', None, 7):
        swatch = Parsed(html.swatch(colour, "<b>"))
        assert [tag for tag, _ in swatch.tags] == ["svg"]
        assert swatch.text == "<b>"
    assert "rect" in html.swatch("#0065b0", 1)


def test_short_rows_of_a_table_are_filled() -> None:
    assert html.tidy(["class", "name", "x"], [[1, "1"], [2]]) == (["class", "x"], [[1, None], [2, None]])


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ([0.0, 1.0], "M0.0 120.0L320.0 0.0"),
        ([0, None, np.float32(2), "x", 1, np.int64(2)], "M0.0 120.0M128.0 0.0M256.0 60.0L320.0 0.0"),
        ([-1.7e308, float("nan"), 1.7e308], "M0.0 120.0M320.0 0.0"),
        ([5.0], "M0.0 120.0"),
    ],
)
def test_a_line_has_gaps_where_a_value_is_not_finite(values: list[Any], path: str) -> None:
    assert Parsed(html.line(values)).all("path")[1]["d"] == path


def test_a_line_without_finite_values_says_so() -> None:
    assert Parsed(html.line([float("nan"), None])).text == "no value is finite"


def test_long_lines_are_thinned_with_a_note() -> None:
    line = html.line([float(k) for k in range(2048)])
    assert line.count("L") == 682
    assert "0 to 2046; every 3rd value is drawn" in line


def tones(css: str, start: str) -> dict[str, str]:
    block = css[css.index(start) :].split("}")[0]
    return dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]{6})", block))


def test_a_page_has_the_colours_of_the_viewer() -> None:
    viewer = (resources.files("endoscope.viewer") / "static" / "style.css").read_text("utf-8")
    page = (resources.files("endoscope.report") / "style.css").read_text("utf-8")
    dark = page[page.index("@media (prefers-color-scheme: dark)") :]
    for own, start, theirs in ((page, ".endoscope.page {", ":root {"), (dark, ".page {", '[data-theme="dark"] {')):
        ours = tones(own, start)
        assert len(ours) == 9
        assert ours.items() <= tones(viewer, theirs).items()
    light = tones(viewer, ":root {")
    cells = [*score_map._GOOD_TO_BAD, score_map._NAN, score_map._INF, score_map._MISSING]
    names = ["map-0", "map-1", "map-2", "map-3", "map-nan", "map-inf", "map-missing"]
    assert ["#" + bytes(colour).hex() for colour in cells] == [light[name] for name in names]


def score_map_pixels(values: list[float], missing: list[bool], fails: list[bool]) -> np.ndarray:
    column = Column(np.array(values), np.array(missing), "lower")
    (image,) = Parsed(score_map.score_map(column, np.array(fails), "map")).all("img")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(str(image["src"]).partition(",")[2]))))
    assert pixels.shape[:2] == (int(str(image["height"])), int(str(image["width"])))
    return pixels


def test_cells_of_a_score_map() -> None:
    nan, inf = float("nan"), float("inf")
    missing, fails = [True, False, False, False, False], [False, True, True, False, False]
    pixels = score_map_pixels([nan, nan, inf, 1.0, 0.0], missing, fails)
    cells = [pixels[:20, k * 22 : k * 22 + 20] for k in range(5)]  # the worst first: NaN, infinite, 1, 0, missing
    assert pixels.shape == (22, 110, 4)
    hatched, infinite, worst, best, hollow = cells
    assert {tuple(map(int, one)) for one in hatched[10:].reshape(-1, 4)} == {(91, 95, 102, 255), (0, 0, 0, 0)}
    assert tuple(infinite[19, 0]) == (91, 75, 183, 255)
    for failing in (hatched, infinite):
        assert tuple(failing[0, 19]) == (28, 29, 31, 255)
        assert tuple(failing[5, 19]) == (28, 29, 31, 255)
        assert tuple(failing[6, 19]) != (28, 29, 31, 255)
    assert tuple(worst[0, 19]) == tuple(worst[10, 10]) == (194, 65, 12, 255)
    assert tuple(best[10, 10]) == (217, 224, 237, 255)
    assert tuple(hollow[0, 0]) == tuple(hollow[19, 19]) == (198, 201, 206, 255)
    assert hollow[1:19, 1:19].max() == 0
    assert pixels[:, 20:22].max() == pixels[20:].max() == 0  # gaps


def test_many_cells_are_small_and_cut_with_a_note() -> None:
    values = np.arange(60_000.0)
    column = Column(values, np.zeros(60_000, bool), "lower")
    shown = Parsed(score_map.score_map(column, column.fails(), "map"))
    assert "the worst 50,000 of 60,000 datapoints are drawn" in shown.text
    assert "too small for corners: the first 3,000 are the failures" in shown.text
    assert shown.all("img")[0]["width"] == "960"
