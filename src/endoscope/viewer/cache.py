"""Cache: what was made of files, kept while they stay the same, bounded in bytes. May be used from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """The values used last, ``most_bytes`` of them together.

    >>> cache = Cache(1 << 20, len)
    >>> cache.get("name", identity, lambda: b"made once")
    b'made once'
    """

    def __init__(self, most_bytes: int, size: Callable[[V], int]) -> None:
        self._most = most_bytes
        self._size = size
        self._kept: dict[Hashable, tuple[Hashable, V]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: Hashable, make: Callable[[], V]) -> V:
        """The value of ``key``, made again when ``state`` is not the one it was made in.

        ``state`` is to be looked up before this is called: what changes while the value is made is seen next time.
        """
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._kept[key] = kept  # the last one used comes last
                if kept[0] == state:
                    return kept[1]
        value = make()
        with self._lock:
            self._drop(key)
            if self._size(value) <= self._most:
                self._kept[key] = state, value
                self._bytes += self._size(value)
            while self._bytes > self._most:
                self._drop(next(iter(self._kept)))
        return value

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= self._size(kept[1])

    @property
    def nbytes(self) -> int:
        return self._bytes
