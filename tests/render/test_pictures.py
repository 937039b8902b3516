"""Colour maps and pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from endoscope.render import colours, pictures
from endoscope.render.pictures import Picture

NAN, INF = float("nan"), float("inf")


def lightness(table: np.ndarray) -> np.ndarray:
    """L* of CIELAB, computed apart from the tables' own OKLab."""
    x = table / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126729, 0.7151522, 0.0721750]
    return 116 * np.where(y > 0.008856, np.cbrt(y), 7.787 * y + 16 / 116) - 16


# What people without the red, green or blue receptors see (Machado, Oliveira, Fernandes 2009, severity 1).
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen_as(table: np.ndarray, kind: str) -> np.ndarray:
    x = table / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(BLINDNESS[kind]).T, 0, 1)
    return 255 * np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)


def test_the_sequential_map_rises_evenly_in_lightness() -> None:
    steps = np.diff(lightness(colours.SEQUENTIAL)[::9])
    assert (steps > 0).all()
    assert steps.max() < 2 * steps.min()
    assert np.abs(np.diff(lightness(colours.SEQUENTIAL))).max() < 1  # no visible edge


@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_sequential_map_rises_for_the_colour_blind_too(kind: str) -> None:
    assert (np.diff(lightness(seen_as(colours.SEQUENTIAL, kind))[::9]) > 0).all()


@pytest.mark.parametrize("kind", BLINDNESS)
def test_both_sides_of_the_diverging_map_differ_for_the_colour_blind(kind: str) -> None:
    seen = seen_as(colours.DIVERGING, kind)
    assert np.abs(seen[20] - seen[-21]).max() > 60
    light = lightness(colours.DIVERGING)
    middle = len(light) // 2
    assert (np.diff(light[:middle:9]) > 0).all()
    assert (np.diff(light[middle::9]) < 0).all()
    assert light[0] == pytest.approx(light[-1], abs=6)


def test_what_is_not_finite_has_colours_that_no_map_has() -> None:
    for table in (colours.SEQUENTIAL, colours.DIVERGING, colours.GREY):
        for own in (colours.NAN, colours.INF):
            assert np.abs(table.astype(int) - own).sum(1).min() > 60


def test_values_take_their_place_in_the_range() -> None:
    places = pictures.mapped(np.array([-1.0, 0.0, 0.5, 1.0, 7.0]), (0.0, 1.0))
    last = colours.STEPS - 1
    assert places.tolist() == [0, 0, round(0.5 * last), last, last]


def test_nan_and_infinities_are_seen_in_their_own_colours() -> None:
    picture = Picture(pictures.mapped(np.array([[NAN, INF], [-INF, 1.0]]), (0.0, 1.0)), colours.SEQUENTIAL)
    pixels = np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB"))
    assert tuple(pixels[0, 0]) == colours.NAN
    assert tuple(pixels[0, 1]) == tuple(pixels[1, 0]) == colours.INF
    assert tuple(pixels[1, 1]) == tuple(colours.SEQUENTIAL[-1])


@pytest.mark.parametrize("span", [(2.0, 2.0), (-1.7e308, 1.7e308), (0.0, 5e-324)])
def test_ranges_without_width_or_with_the_widest(span: tuple[float, float]) -> None:
    places = pictures.mapped(np.array([span[0], span[1]]), span)
    assert places.max() < colours.STEPS
    if span == (-1.7e308, 1.7e308):
        assert places.tolist() == [0, colours.STEPS - 1]


def test_integers_and_halves_are_mapped_alike() -> None:
    values = np.array([0, 1, 2])
    for dtype in (np.int64, np.uint8, np.float16, np.float64):
        last = colours.STEPS - 1
        assert pictures.mapped(values.astype(dtype), (0.0, 2.0)).tolist() == [0, round(last / 2), last]


def test_tiles_lie_in_rows_with_transparent_gaps() -> None:
    tiles = np.stack([np.full((2, 3), k, np.uint8) for k in range(5)])
    sheet = pictures.tiled(tiles, columns=2, gap=1)
    assert sheet.shape == (3 * 2 + 2, 2 * 3 + 1)
    assert (sheet[0:2, 0:3] == 0).all()
    assert (sheet[0:2, 4:7] == 1).all()
    assert (sheet[6:8, 0:3] == 4).all()
    image = Image.open(io.BytesIO(Picture(sheet, colours.SEQUENTIAL).png())).convert("RGBA")
    alpha = np.asarray(image)[..., 3]
    assert (alpha[2] == 0).all()  # between the rows
    assert (alpha[:2, 3] == 0).all()  # between the columns
    assert (alpha[6:, 4:] == 0).all()  # where there is no sixth tile
    assert (alpha[:2, :3] == 255).all()


def test_enlarging_repeats_pixels() -> None:
    pixels = np.array([[1, 2], [3, 4]], np.uint8)
    assert pictures.enlarged(pixels, 2).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]


@pytest.mark.parametrize(("size", "wanted", "factor"), [((8, 8), 256, 32), ((8, 5), 60, 7), ((300, 2), 256, 1)])
def test_factors_are_whole(size: tuple[int, int], wanted: int, factor: int) -> None:
    assert pictures.factor_for(size, wanted) == factor


def test_classes_have_colours_that_differ() -> None:
    table = np.array([colours.category(k) for k in range(20)], int)
    for k in range(20):
        others = np.delete(table, k, 0)
        assert np.abs(others - table[k]).sum(1).min() > 30
