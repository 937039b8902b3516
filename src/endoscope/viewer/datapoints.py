"""Datapoints with a cache of recently read values, so that its pictures are drawn without reading it again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from endoscope.pages.reader import DebugOutputs
from endoscope.render.numbers import is_numbers
from endoscope.render.plain import members
from endoscope.runs import Epoch
from endoscope.runs.datapoint import MOST_BYTES, Datapoint
from endoscope.values import nbytes
from endoscope.viewer.cache import Cache

MAX_BYTES = 16 << 20
"""Of all recently read values; a larger one is read for each picture. The server is to stay below 300 MB."""
MAX_COUNT = 256


@dataclass(frozen=True)
class CachedDatapoint(Datapoint):
    """A datapoint whose values come from a cache as long as the files that hold them stay the same.

    `beside` gives plain datapoints: looking through a thousand others must not push this one out of the cache.
    """

    values: Cache[Any] = field(kw_only=True, repr=False, compare=False)
    pages: Mapping[str, DebugOutputs | None] = field(kw_only=True, repr=False, compare=False)
    """By section, opened before anything is read, so that a newer value is never stored under older files."""

    def read(self, section: str, name: str | None = None, *, most: int = MOST_BYTES) -> Any:
        pages = self.pages.get(section, self.pages["inputs"])
        read = super().read
        if pages is None:
            return read(section, name, most=most)
        key = (pages.folder, self.idx, name or section, most)
        return self.values.get(key, _Opened(pages), lambda: read(section, name, most=most))


class Datapoints:
    """Makes datapoints that share one cache of recently read values."""

    def __init__(self) -> None:
        self.values: Cache[Any] = Cache(MAX_BYTES, size_of, max_count=MAX_COUNT)

    def of(self, epoch: Epoch, idx: int) -> Datapoint:
        run = epoch.run
        pages = {"inputs": run.datapoints, "outputs": epoch.outputs, "debugger": epoch.debugger}
        return CachedDatapoint(run, epoch, idx, values=self.values, pages=pages)


class _Opened:
    """The pages a value was read from: a run opens its folder again, as another object, when a file in it changes.

    The reference is weak, so that the cache keeps no file open.
    """

    def __init__(self, pages: DebugOutputs) -> None:
        self._pages = weakref.ref(pages)

    def __eq__(self, other: object) -> bool:
        pages = self._pages()
        return isinstance(other, _Opened) and pages is not None and pages is other._pages()

    __hash__ = None  # type: ignore[assignment]


def size_of(value: Any) -> int:
    """About how many bytes of memory a value takes."""
    total, pending = 0, [value]
    while pending:
        inner = pending.pop()
        total += 100
        if is_numbers(inner):
            total += nbytes(inner)
        elif isinstance(inner, (str, bytes)):
            total += len(inner)
        else:
            pending += [member for _, member in members(inner) or ()]
    return total
