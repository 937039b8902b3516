"""Scores: the results of a metric, over all datapoints and for each. docs/scores.md specifies their files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from endoscope.errors import ConfigError, EndoscopeError, closest
from endoscope.runs import fields
from endoscope.runs.atomic import replacing
from endoscope.runs.fields import Direction
from endoscope.runs.layout import Split, scores_file

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

FORMAT = "endoscope-scores"
VERSION = 1

V = TypeVar("V")


class ScoresError(EndoscopeError, OSError):
    """A score file cannot be read."""


class ScoresFormatError(ScoresError, ValueError):
    """The file is not a score file, is malformed, or was written by a newer version."""


class ScoreNotFoundError(EndoscopeError, KeyError):
    """No datapoint has a score of that name."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one split.

    >>> scores = Scores(directions={"loss": "lower"}, aggregated={"loss": 2.0}, non_finite={"loss": 0},
    ...                 per_datapoint={17: {"loss": 1.0}, 18: {"loss": 3.0}})
    >>> scores.worst("loss", 1)
    [(18, 3.0)]
    """

    directions: Mapping[str, Direction]
    """For every score, including those that exist only over all datapoints."""
    aggregated: Mapping[str, float]
    """Over all datapoints."""
    non_finite: Mapping[str, int]
    """For every score of a datapoint: the number of datapoints with NaN or an infinity."""
    per_datapoint: Mapping[int, Mapping[str, float]]
    """By index of the datapoint, ascending."""
    split: Split | None = field(default=None, kw_only=True)
    epoch: int | None = field(default=None, kw_only=True)

    def worst(self, name: str, n: int = 10) -> list[tuple[int, float]]:
        """The ``n`` worst datapoints, worst first: NaN before all numbers, then by direction, then by index."""
        pairs = [(idx, scores[name]) for idx, scores in self.per_datapoint.items() if name in scores]
        if not pairs and (self.per_datapoint or name not in self.directions):
            known = sorted({key for scores in self.per_datapoint.values() for key in scores} or self.directions)
            raise score_not_found(name, known)
        sign = 1 if self.directions[name] == "higher" else -1

        def badness(item: tuple[int, float]) -> tuple[bool, float, int]:
            idx, score = item
            return (False, 0.0, idx) if math.isnan(score) else (True, sign * score, idx)

        return sorted(pairs, key=badness)[: max(n, 0)]


def score_not_found(name: str, known: Sequence[str]) -> ScoreNotFoundError:
    hint = closest(name, known) or f"; its scores are {', '.join(map(repr, known))}"
    return ScoreNotFoundError(f"no datapoint has the score {name!r}{hint}")


def score_label(name: str, *, by_class: Sequence[str], class_names: Sequence[str] | None) -> str:
    """The display name of a score: ``iou/3`` has the name of class 3, if that is known.

    >>> score_label("iou/1", by_class=["iou"], class_names=["road", "car"])
    'iou/car'

    by_class: the scores with one value per class, from run.json.
    """
    base, _, number = name.rpartition("/")
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    if base in by_class and class_names and is_number and int(number) < len(class_names):
        return f"{base}/{class_names[int(number)]}"
    return name


def write_scores(scores: Scores, folder: Path, *, split: Split, epoch: int | None = None) -> Path:
    """Write ``{split}_scores.json`` into ``folder`` atomically; returns its path.

    >>> write_scores(scores, work_dir / "epoch_4", split="validation", epoch=4)
    """
    if split not in get_args(Split):
        raise ConfigError(f"split={split!r}; expected one of {', '.join(map(repr, get_args(Split)))}")
    path = Path(folder) / scores_file(split)
    with replacing(path) as file:
        file.write(encode(replace(scores, split=split, epoch=epoch)).encode())
    return path


def read_scores(path: Path) -> Scores:
    """Read a score file; raises `ScoresError` with the file and the reason.

    >>> read_scores(work_dir / "epoch_4" / "validation_scores.json").aggregated["accuracy"]
    0.97
    """
    try:
        text = Path(path).read_bytes()
    except OSError as e:
        raise ScoresError(f"cannot read the scores in {str(path)!r}: {e.strerror}") from e
    try:
        return decode(text)
    except (ValueError, RecursionError) as e:
        raise ScoresFormatError(f"{str(path)!r} holds no usable scores: {e}") from e


def encode(scores: Scores) -> str:
    """The text of a score file: JSON, one line per datapoint."""
    lines = (f'  "{idx}": {json.dumps(dict(scores.per_datapoint[idx]))}' for idx in sorted(scores.per_datapoint))
    head = {
        "format": FORMAT,
        "version": VERSION,
        "split": scores.split,
        "epoch": scores.epoch,
        "directions": dict(scores.directions),
        "aggregated": dict(scores.aggregated),
        "non_finite": dict(scores.non_finite),
    }
    members = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    datapoints = ",\n".join(lines)
    members.append(' "per_datapoint": {' + (f"\n{datapoints}\n " if datapoints else "") + "}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def decode(text: str | bytes) -> Scores:
    """The scores in the text of a score file; raises ValueError with the reason."""
    content = json.loads(text)
    scores = decode_head(content)
    per_datapoint = {
        _index(key): _table(content["per_datapoint"], key, fields.number, within="per_datapoint.")
        for key in _table(content, "per_datapoint", lambda value: value)
    }
    check_directions(scores, {name for each in per_datapoint.values() for name in each})
    return replace(scores, per_datapoint={idx: per_datapoint[idx] for idx in sorted(per_datapoint)})


def decode_head(content: Any) -> Scores:
    """Everything but the scores of each datapoint."""
    fields.check_format(content, FORMAT, VERSION)
    split, epoch = content.get("split"), content.get("epoch")
    if split not in (None, *get_args(Split)):
        raise ValueError(f"split is {split!r}")
    if epoch is not None and type(epoch) is not int:
        raise ValueError(f"epoch is {epoch!r}, expected a number or null")
    return Scores(
        _table(content, "directions", fields.direction),
        _table(content, "aggregated", fields.number),
        _table(content, "non_finite", fields.count),
        {},
        split=split,
        epoch=epoch,
    )


def check_directions(scores: Scores, names: set[str]) -> None:
    """Raise ValueError if a score of a datapoint has no direction."""
    if unknown := sorted(names - scores.directions.keys()):
        raise ValueError(f"directions has no entry for {unknown[0]!r}")


def _table(content: Any, key: str, read: Callable[[Any], V], *, within: str = "") -> dict[str, V]:
    values = content.get(key)
    if not isinstance(values, dict):
        raise ValueError(f"{within}{key} is {type(values).__name__}, expected an object")
    table = {}
    for name, value in values.items():
        try:
            table[name] = read(value)
        except (ValueError, OverflowError) as e:
            raise ValueError(f"{within}{key}.{name} is {str(value)[:40]!r}; {e}") from e
    return table


def _index(key: str) -> int:
    if not key.removeprefix("-").isdecimal() or str(int(key)) != key:
        raise ValueError(f"per_datapoint has the key {key[:40]!r}, expected a datapoint's index")
    return int(key)
