"""Small pictures for the terminal: coloured cells where it can show them, characters everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

Pixels = Sequence[Sequence[float]]
"""Rows of brightness, 0 to 1."""
Palette = Literal["grey", "heat"]

RAMP = " .:-=+*#%@"
"""Characters from dark to bright."""
_STOPS: dict[Palette, tuple[tuple[int, int, int], ...]] = {
    "grey": ((0, 0, 0), (255, 255, 255)),
    "heat": ((0, 0, 0), (120, 28, 109), (237, 105, 37), (252, 255, 164)),
}


def picture(pixels: Pixels, palette: Palette, console: Console) -> Text:
    """Two columns and one line for each pixel, which is about square."""
    made = Text()
    for k, row in enumerate(pixels):
        made.append("\n" if k else "")
        for value in row:
            if console.color_system:
                made.append("  ", Style(bgcolor=_color(value, palette)))
            else:
                made.append(RAMP[round(value * (len(RAMP) - 1))] * 2)
    return made


def _color(value: float, palette: Palette) -> Color:
    stops = _STOPS[palette]
    at = value * (len(stops) - 1)
    low = min(int(at), len(stops) - 2)
    part = at - low
    return Color.from_rgb(*(a + (b - a) * part for a, b in zip(stops[low], stops[low + 1], strict=True)))


def normalised(pixels: Pixels) -> Pixels:
    """Stretched so that the brightest is 1; all 0 if nothing is above 0."""
    highest = max(max(row) for row in pixels)
    return [[max(v, 0.0) / highest if highest > 0 else 0.0 for v in row] for row in pixels]
