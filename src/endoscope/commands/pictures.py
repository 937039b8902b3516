"""Small pictures for the terminal: coloured cells where it has colours, characters elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from endoscope.render.colours import Table

Pixels = Sequence[Sequence[float]]
"""Rows of brightness, 0 to 1."""

RAMP = " .:-=+*#%@"
"""Characters from dark to bright."""


def picture(pixels: Pixels, colours: Table, console: Console) -> Text:
    """Two columns and one line per pixel, which is about square."""
    text = Text()
    for k, row in enumerate(pixels):
        text.append("\n" if k else "")
        for value in row:
            if console.color_system:
                text.append("  ", Style(bgcolor=Color.from_rgb(*colours[round(value * (len(colours) - 1))].tolist())))
            else:
                text.append(RAMP[round(value * (len(RAMP) - 1))] * 2)
    return text


def normalised(pixels: Pixels) -> Pixels:
    """Scaled so that the highest value is 1; all 0 if no value is above 0."""
    highest = max(max(row) for row in pixels)
    return [[max(v, 0.0) / highest if highest > 0 else 0.0 for v in row] for row in pixels]
