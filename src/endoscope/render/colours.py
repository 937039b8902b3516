"""The colour maps, computed in OKLab, a space in which equal steps look equal.

Both are ordered by lightness, so that they can be read with a colour vision deficiency and in greyscale print.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.uint8]]
"""Rows of red, green, blue."""

STEPS = 252
NAN = (255, 45, 146)
INF = (255, 140, 0)


def _srgb(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """Red, green, blue of an OKLCH colour; outside of 0 to 1 if a screen cannot show it."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    red, green, blue = (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in linear)
    return red, green, blue


def colour(lightness: float, chroma: float, hue: float) -> tuple[int, int, int]:
    """The most saturated colour of this lightness and hue, up to ``chroma``, that a screen can show."""
    low, high = 0.0, chroma
    if _is_displayable(lightness, chroma, hue):
        low = chroma
    else:
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if _is_displayable(lightness, middle, hue) else (low, middle)
    red, green, blue = (round(255 * min(max(c, 0.0), 1.0)) for c in _srgb(lightness, low, hue))
    return red, green, blue


def _is_displayable(lightness: float, chroma: float, hue: float) -> bool:
    rgb = _srgb(lightness, chroma, hue)
    return min(rgb) >= -1e-4 and max(rgb) <= 1.0001


def _sequential() -> Table:
    """Dark violet over blue and green to yellow: lightness rises evenly while the hue turns."""
    at = np.linspace(0.0, 1.0, STEPS)
    rows = [colour(0.22 + 0.68 * t, 0.11 + 0.07 * t, 305 - 205 * t**1.1) for t in at]
    return np.array(rows, np.uint8)


def _diverging() -> Table:
    """Blue over near white to red-brown, symmetric in lightness."""
    at = np.linspace(-1.0, 1.0, STEPS)
    rows = [colour(0.96 - 0.56 * abs(t), 0.16 * abs(t), 255 if t < 0 else 45) for t in at]
    return np.array(rows, np.uint8)


SEQUENTIAL = _sequential()
DIVERGING = _diverging()
GREY = np.repeat(np.linspace(0, 255, STEPS).round().astype(np.uint8)[:, None], 3, 1)


def category(index: int) -> tuple[int, int, int]:
    """The colour of a class. Successive classes differ in hue, by the golden angle, and in lightness."""
    if index < 0:
        return (128, 128, 128)
    return colour((0.50, 0.76, 0.63, 0.87, 0.70)[index % 5], 0.15, (250 + 137.508 * index) % 360)


def css(rgb: Any) -> str:
    """A colour in CSS.

    >>> css((255, 45, 146))
    '#ff2d92'
    """
    return "#" + "".join(f"{int(c):02x}" for c in rgb)


def legend(table: Table, stops: int = 9) -> list[str]:
    """Colours from low to high, for the scale beside a picture."""
    return [css(table[round(k * (len(table) - 1) / (stops - 1))]) for k in range(stops)]
