"""The import path of `endoscope.runs.scores` for those who write runners and metrics of their own."""

from endoscope.runs.scores import (
    Direction,
    ScoreNotFoundError,
    Scores,
    ScoresError,
    ScoresFormatError,
    Split,
    read_scores,
    score_label,
    write_scores,
)

__all__ = [
    "Direction",
    "ScoreNotFoundError",
    "Scores",
    "ScoresError",
    "ScoresFormatError",
    "Split",
    "read_scores",
    "score_label",
    "write_scores",
]
