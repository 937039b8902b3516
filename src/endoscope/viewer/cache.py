"""Cache: values computed from files, bounded in bytes and count. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """The most recently used values, at most ``max_bytes`` and ``max_count`` of them.

    >>> cache = Cache(1 << 20, len)
    >>> cache.get("name", identity, lambda: b"computed once")
    b'computed once'
    """

    def __init__(self, max_bytes: int, size: Callable[[V], int], *, max_count: int = 100_000) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._size = size
        self._entries: dict[Hashable, tuple[object, V, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: object, make: Callable[[], V]) -> V:
        """The value of ``key``, computed again when ``state`` differs from the state it was computed in.

        Look up ``state`` before calling this: a change while the value is computed is then noticed next time.
        """
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None and entry[0] == state:
                self._entries[key] = entry  # the most recently used comes last
                return entry[1]
            self._bytes -= entry[2] if entry is not None else 0
        value = make()
        size = self._size(value)
        with self._lock:
            self._drop(key)
            if size <= self._max_bytes:
                self._entries[key] = state, value, size
                self._bytes += size
            while self._bytes > self._max_bytes or len(self._entries) > self._max_count:
                self._drop(next(iter(self._entries)))
        return value

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._bytes -= entry[2] if entry is not None else 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)
