"""Output whose numbers may differ between machines, made comparable."""

from __future__ import annotations

import re


def masked(text: str) -> str:
    """A text with ``#`` for every number, and one blank or line character where a table has several.

    >>> masked("loss   0.25, accuracy 97.0%")
    'loss #, accuracy #'
    """
    text = re.sub(r"(?<!\w)-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?%?", "#", text)
    return re.sub(r" *\n", "\n", re.sub(r" +", " ", re.sub("─+", "─", text)))
