"""ScoreTable: a score file as arrays.

Files are read in pieces, so that a million datapoints take the memory of their numbers, not of a million dicts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from endoscope.runs.files import JSON_LIMIT, MB, Decoded, Unreadable, checked, clean, load_json, unique
from endoscope.runs.scores import Direction, Scores, Split, check_directions, decode_head, score_not_found

LIMIT = 1024 * MB
"""Bytes of the largest score file that is read: ten million datapoints with three scores each."""
_CELLS = 64 << 20  # scores of all datapoints together, as a file of that size can hold
_LAYOUTS = 64  # different sets of scores among the datapoints of one file; our runners write one
_PIECE = MB
_AT_ONCE = 128 << 10  # bytes that one call decodes; meanwhile no other Python thread runs
_OPEN = b' "per_datapoint": {\n'
_CLOSE = b" }\n"
_END = b"}\n"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """The scores of one validation or evaluation, as arrays.

    >>> table = run.epochs[-1].scores
    >>> table.aggregated["accuracy"]
    0.97
    >>> table.indices, table.values["loss"]
    (array([17, 18]), array([0.25,  nan]))
    >>> table.indices[table.worst_first("loss")][:10]           # the ten worst datapoints
    """

    split: Split | None
    epoch: int | None
    directions: Mapping[str, Direction]
    aggregated: Mapping[str, float]
    non_finite: Mapping[str, int]
    indices: NDArray[np.int64]
    """Of the datapoints, ascending."""
    values: Mapping[str, NDArray[np.float64]]
    """For each score of a datapoint, in the order of `indices`; NaN also where a datapoint lacks the score."""
    missing: Mapping[str, NDArray[np.bool_]]
    """Where a datapoint lacks a score; only for scores that some datapoint lacks."""

    def worst_first(self, name: str) -> NDArray[np.intp]:
        """Positions in `indices`: NaN first, then by direction, then by index; datapoints without the score last."""
        if name not in self.values:
            raise score_not_found(name, sorted(self.values))
        values = self.values[name]
        badness = values if self.directions[name] == "higher" else -values
        absent = self.missing.get(name, np.zeros(len(values), bool))
        return np.lexsort((self.indices, np.where(np.isnan(values), 0.0, badness), ~np.isnan(values), absent))


def read_table(file: BinaryIO) -> Decoded[ScoreTable]:
    """The scores in a file; raises ValueError with the reason."""
    size = os.fstat(file.fileno()).st_size
    if size > LIMIT:
        raise Unreadable(f"it has {size} bytes; at most {LIMIT} are read")
    try:
        return _read_in_pieces(file), []
    except (ValueError, OverflowError) as e:
        if size > JSON_LIMIT:
            raise Unreadable(f"it does not have the layout of a score file: {e}") from e
    file.seek(0)  # another layout, or malformed; this finds out which
    content = load_json(file)
    rows = content.pop("per_datapoint", None) if isinstance(content, dict) else None
    columns = _Columns(decode_head(checked(content)))
    if not isinstance(rows, dict):
        raise Unreadable(f"per_datapoint is {type(rows).__name__}, expected an object")
    columns.add(rows)
    return columns.table(), []


def _read_in_pieces(file: BinaryIO) -> ScoreTable:
    """The documented layout: one line per datapoint."""
    head, line = b"", file.readline(_PIECE)
    while line != _OPEN:
        head += line
        if not line.endswith(b"\n") or len(head) > JSON_LIMIT:
            raise Unreadable("it has no line for per_datapoint")
        line = file.readline(_PIECE)
    columns = _Columns(decode_head(checked(_object(head + b' "per_datapoint": {}'))))
    for piece in _pieces(file):
        columns.add(_object(b"{" + piece))
    return columns.table()


def _object(text: bytes) -> Any:
    """A JSON object without its closing brace."""
    return json.loads((text + b"}").decode(), object_pairs_hook=unique)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The lines of the datapoints, some at a time, without the comma after the last; nothing may follow them."""
    lines: list[bytes] = []
    size = 0
    while (line := file.readline(_PIECE)) != _CLOSE:
        lines.append(line)
        size += len(line)
        if not line:
            raise Unreadable("it ends before its last line")
        if size >= _AT_ONCE and line.endswith(b",\n"):
            yield b"".join(lines)[:-2]
            lines, size = [], 0
        if size > _AT_ONCE + 2 * _PIECE:
            raise Unreadable(f"there is no comma and no end in {size} bytes")
    if lines:
        yield b"".join(lines)
    if file.read(len(_END) + 1) != _END:
        raise Unreadable("it continues after per_datapoint")


class _Columns:
    """Rows of scores, collected into a table."""

    def __init__(self, head: Scores) -> None:
        self._head = head
        self._layouts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._indices: list[NDArray[np.int64]] = []
        self._parts: list[tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.float64]]] = []
        self._rows = 0

    def add(self, rows: dict[str, Any]) -> None:
        """Add the scores of some datapoints, by index. Datapoints with the same scores form one part."""
        positions: dict[tuple[str, ...], list[int]] = {}
        for k, (key, row) in enumerate(rows.items()):
            if not isinstance(row, dict):
                raise Unreadable(f"per_datapoint.{key[:40]} is {type(row).__name__}, expected an object")
            positions.setdefault(tuple(row), []).append(k)
        values = list(rows.values())
        for keys, at in positions.items():
            names = self._layouts.get(keys) or self._new_layout(keys)
            flat = [value for k in at for value in values[k].values()]
            if not {*map(type, flat)} <= {int, float}:
                raise Unreadable("per_datapoint has a score that is not a number")
            cells = np.array(flat, np.float64).reshape(len(at), len(names))
            self._parts.append((names, np.array(at, np.int64) + self._rows, cells))
        self._indices.append(_indices(list(rows)))
        self._rows += len(rows)

    def _new_layout(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(unique([(clean(key), None) for key in keys]))
        check_directions(self._head, set(names))
        self._layouts[keys] = names
        if len(self._layouts) > _LAYOUTS:
            raise Unreadable(f"its datapoints have more than {_LAYOUTS} different sets of scores")
        return names

    def table(self) -> ScoreTable:
        head, names = self._head, [*dict.fromkeys(name for layout in self._layouts.values() for name in layout)]
        if len(names) * self._rows > _CELLS:
            raise Unreadable(f"{len(names)} scores of {self._rows} datapoints are more than are read")
        cells = np.full((len(names), self._rows), np.nan)
        exists = np.zeros((len(names), self._rows), bool)
        for layout, at, values in self._parts:
            rows = np.array(list(map(names.index, layout)), np.intp)[:, None]
            cells[rows, at], exists[rows, at] = values.T, True
        indices = np.concatenate([np.empty(0, np.int64), *self._indices])
        order = np.argsort(indices, kind="stable")
        indices = indices[order]
        duplicates = indices[1:][np.diff(indices) == 0]
        if len(duplicates):
            raise Unreadable(f"datapoint {duplicates[0]} occurs twice")
        return ScoreTable(
            head.split,
            head.epoch,
            head.directions,
            head.aggregated,
            head.non_finite,
            indices,
            {name: cells[k, order] for k, name in enumerate(names)},
            {name: ~exists[k, order] for k, name in enumerate(names) if not exists[k].all()},
        )


def _indices(keys: list[str]) -> NDArray[np.int64]:
    try:
        indices = list(map(int, keys))
        if [*map(str, indices)] == keys:
            return np.array(indices, np.int64)
    except (ValueError, OverflowError):
        pass
    raise Unreadable("per_datapoint has a key that is not a datapoint's index")
