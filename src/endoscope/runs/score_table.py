"""ScoreTable: a score file as arrays, for files of any length.

Read piece by piece, so that a million datapoints take the memory of their numbers and not of a million dicts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import closest
from endoscope.runs.files import JSON_LIMIT, MB, Decoded, Unreadable, clean, load_json, plain, unique
from endoscope.runs.scores import Direction, ScoreNotFoundError, Scores, Split, check_directions, decode_head

LIMIT = 1024 * MB
"""Bytes of a score file that is read, which is ten million datapoints with three scores each."""
_CELLS = 64 << 20  # scores of all datapoints together, as a file of that size can hold
_LAYOUTS = 64  # different sets of scores that datapoints of one file may have; those of ours have one
_PIECE = MB
_AT_ONCE = 128 << 10  # bytes that are decoded in one call, during which no other thread of Python runs
_OPEN = b' "per_datapoint": {\n'
_CLOSE = b" }\n"
_NUMBER = r"(-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+|NaN|-?Infinity)"
_PATTERN = 64  # scores of a datapoint for which a pattern is made

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """The scores of one validation or evaluation, as arrays.

    >>> table = run.epochs[-1].scores
    >>> table.aggregated["accuracy"]
    0.97
    >>> table.indices, table.values["loss"]
    (array([17, 18]), array([0.25,  nan]))
    >>> table.indices[table.worst_first("loss")][:10]           # the ten datapoints that do worst
    """

    split: Split | None
    epoch: int | None
    directions: Mapping[str, Direction]
    aggregated: Mapping[str, float]
    non_finite: Mapping[str, int]
    indices: NDArray[np.int64]
    """Of the datapoints, ascending."""
    values: Mapping[str, NDArray[np.float64]]
    """For each score of a datapoint, in the order of `indices`; NaN also where a datapoint has none."""
    missing: Mapping[str, NDArray[np.bool_]]
    """Where a datapoint has no such score; only of scores that some datapoint lacks."""

    def worst_first(self, name: str) -> NDArray[np.intp]:
        """Positions in `indices`: NaN before all, then by direction, then by index; those without the score last."""
        if name not in self.values:
            near = closest(name, self.values) or f"; there are {', '.join(map(repr, sorted(self.values)))}"
            raise ScoreNotFoundError(f"no datapoint has the score {name!r}{near}")
        values = self.values[name]
        badness = values if self.directions[name] == "higher" else -values
        absent = self.missing.get(name, np.zeros(len(values), bool))
        return np.lexsort((self.indices, np.where(np.isnan(values), 0.0, badness), ~np.isnan(values), absent))


def read_table(file: BinaryIO, between: Callable[[], None] = lambda: None) -> Decoded[ScoreTable]:
    """The scores in a file; ValueError says what is wrong with it. ``between`` is called at times, and may raise."""
    size = os.fstat(file.fileno()).st_size
    if size > LIMIT:
        raise Unreadable(f"it has {size} bytes; at most {LIMIT} are read")
    try:
        return _in_pieces(file, between), []
    except (ValueError, OverflowError) as e:
        if size > JSON_LIMIT:
            raise Unreadable(f"its lines are not those of a score file: {e}") from e
    file.seek(0)  # laid out in another way, or malformed: this will tell
    whole = load_json(file)
    rows = whole.pop("per_datapoint", None) if isinstance(whole, dict) else None
    table = _Columns(decode_head(plain(whole)))
    if not isinstance(rows, dict):
        raise Unreadable(f"per_datapoint is {type(rows).__name__}, expected an object")
    table.add(rows)
    return table.made(), []


def _in_pieces(file: BinaryIO, between: Callable[[], None]) -> ScoreTable:
    """The layout that is documented: one datapoint a line."""
    head, line = b"", file.readline(_PIECE)
    while line != _OPEN:
        head += line
        if not line.endswith(b"\n") or len(head) > JSON_LIMIT:
            raise Unreadable("there is no line for per_datapoint")
        line = file.readline(_PIECE)
    table = _Columns(decode_head(plain(_object(head + b' "per_datapoint": {'))))
    for piece in _pieces(file):
        between()
        alike = _alike(piece)
        if alike is not None:
            table.add_alike(*alike)
        else:
            table.add(_object(b"{" + piece))
    return table.made()


def _alike(piece: bytes) -> tuple[tuple[str, ...], Sequence[str], NDArray[np.float64]] | None:
    """The scores, the datapoints and the cells of lines that all look like the first; None when they do not.

    The same as JSON would give, in half of the time, as no datapoint becomes a dict.
    """
    row = next(iter(_object(b"{" + piece.partition(b"\n")[0].removesuffix(b",")).values()))
    if not isinstance(row, dict) or not 0 < len(row) <= _PATTERN or not piece.isascii():
        return None
    cells = ", ".join(f"{re.escape(json.dumps(name))}: {_NUMBER}" for name in row)
    line = re.compile(rf'^  "(-?[0-9]+)": \{{{cells}\}}(?:,\n|\Z)', re.MULTILINE)
    found = line.findall(piece.decode())
    if len(found) != piece.count(b"\n") + 1:
        return None
    keys, *columns = zip(*found, strict=True)
    values = [json.loads(f"[{','.join(column)}]") for column in columns]
    return tuple(row), keys, np.array(values, np.float64).T


def _object(text: bytes) -> Any:
    """An object without its last brace, or two."""
    closed = text + (b"}}" if text.endswith(b"{") else b"}")
    return json.loads(closed.decode(), object_pairs_hook=unique)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The lines of the datapoints, some at a time, without the comma after the last; the file must end after them."""
    rest = b""
    while True:
        got = file.read(_AT_ONCE)
        lines, newline, rest = (rest + got).rpartition(b"\n")
        lines += newline
        at_once = lines.startswith(_CLOSE)
        end = 0 if at_once else lines.find(b"\n" + _CLOSE) + 1
        if end or at_once:
            after = lines[end + len(_CLOSE) :] + rest + file.read(_PIECE)
            if len(after) > _PIECE or after.strip() != b"}":
                raise Unreadable("there is more after per_datapoint")
            if end:
                yield lines[:end].rstrip(b"\n")
            return
        if not got:
            raise Unreadable("it ends before its last line")
        if lines.endswith(b",\n"):
            yield lines[:-2]
        else:  # the last datapoint has no comma, and the next line will close
            rest = lines + rest
        if len(rest) > 3 * _PIECE:
            raise Unreadable(f"there is no comma and no end in {len(rest)} bytes")


class _Columns:
    """Rows of scores, growing into a table."""

    def __init__(self, head: Scores) -> None:
        self._head = head
        self._layouts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._indices: list[NDArray[np.int64]] = []
        self._parts: list[tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.float64]]] = []
        self._rows = 0

    def add(self, rows: Row) -> None:
        """Some datapoints: their scores by index. Those that have the same scores are taken together."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for k, (key, row) in enumerate(rows.items()):
            if not isinstance(row, dict):
                raise Unreadable(f"per_datapoint.{key[:40]} is {type(row).__name__}, expected an object")
            alike.setdefault(tuple(row), []).append(k)
        values = list(rows.values())
        for keys, at in alike.items():
            names = self._layouts.get(keys) or self._new_layout(keys)
            flat = [value for k in at for value in values[k].values()]
            if not {*map(type, flat)} <= {int, float}:
                raise Unreadable("per_datapoint has a score that is no number")
            cells = np.array(flat, np.float64).reshape(len(at), len(names))
            self._parts.append((names, np.array(at, np.int64) + self._rows, cells))
        self._indices.append(_indices(list(rows)))
        self._rows += len(rows)

    def add_alike(self, layout: tuple[str, ...], keys: Sequence[str], cells: NDArray[np.float64]) -> None:
        """Some datapoints that have the same scores, a row of ``cells`` each."""
        names = self._layouts.get(layout) or self._new_layout(layout)
        self._parts.append((names, np.arange(len(keys)) + self._rows, cells))
        self._indices.append(_indices(keys))
        self._rows += len(keys)

    def _new_layout(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(unique([(clean(key), None) for key in keys]))
        check_directions(self._head, set(names))
        self._layouts[keys] = names
        if len(self._layouts) > _LAYOUTS:
            raise Unreadable(f"its datapoints have more than {_LAYOUTS} different sets of scores")
        return names

    def made(self) -> ScoreTable:
        head, names = self._head, [*dict.fromkeys(name for layout in self._layouts.values() for name in layout)]
        if len(names) * self._rows > _CELLS:
            raise Unreadable(f"{len(names)} scores of {self._rows} datapoints are more than are read")
        place = {name: k for k, name in enumerate(names)}
        cells = np.full((len(names), self._rows), np.nan)
        there = np.zeros((len(names), self._rows), bool)
        for of, at, values in self._parts:
            rows = np.array([place[name] for name in of], np.intp)[:, None]
            cells[rows, at], there[rows, at] = values.T, True
        indices = np.concatenate([np.empty(0, np.int64), *self._indices])
        order = np.argsort(indices, kind="stable")
        indices = indices[order]
        if (indices[1:] == indices[:-1]).any():
            twice = indices[1:][indices[1:] == indices[:-1]][0]
            raise Unreadable(f"datapoint {twice} comes twice")
        return ScoreTable(
            head.split,
            head.epoch,
            head.directions,
            head.aggregated,
            head.non_finite,
            indices,
            {name: cells[k, order] for k, name in enumerate(names)},
            {name: ~there[k, order] for k, name in enumerate(names) if not there[k].all()},
        )


def _indices(keys: Sequence[str]) -> NDArray[np.int64]:
    try:
        found = list(map(int, keys))
        if [*map(str, found)] == [*keys]:
            return np.array(found, np.int64)
    except (ValueError, OverflowError):
        pass
    raise Unreadable("per_datapoint has a key that is no datapoint's index")
