"""A cache keeps what was made while nothing has changed, and never more than it may."""

from __future__ import annotations

import random
import threading

from endoscope.viewer.cache import Cache


def test_a_value_is_made_once_for_each_state() -> None:
    cache: Cache[bytes] = Cache(100, len)
    made = []

    def make(value: bytes) -> bytes:
        made.append(value)
        return value

    assert [cache.get("a", 1, lambda: make(b"x")) for _ in range(3)] == [b"x"] * 3
    assert cache.get("a", 2, lambda: make(b"yy")) == b"yy"
    assert cache.get("a", 1, lambda: make(b"z")) == b"z"
    assert made == [b"x", b"yy", b"z"]
    assert cache.nbytes == 1


def test_the_bytes_stay_below_the_bound_and_the_last_used_stay() -> None:
    cache: Cache[bytes] = Cache(100, len)
    rng = random.Random(0)
    for _ in range(2000):
        key, state, size = rng.randrange(40), rng.randrange(3), rng.randrange(120)
        found = cache.get(key, state, lambda key=key, state=state, size=size: bytes([key, state]) * (size // 2))
        assert found[:2] in (bytes([key, state]), b"")
        assert 0 <= cache.nbytes <= 100
    cache.get("kept", 0, lambda: b"k" * 40)
    cache.get("other", 0, lambda: b"o" * 40)
    cache.get("kept", 0, lambda: b"again")
    cache.get("new", 0, lambda: b"n" * 40)
    assert cache.get("kept", 0, lambda: b"made anew") == b"k" * 40
    assert cache.get("other", 0, lambda: b"made anew") == b"made anew"


def test_a_value_larger_than_the_cache_is_not_stored() -> None:
    cache: Cache[bytes] = Cache(10, len)
    assert cache.get("a", 0, lambda: b"x" * 11) == b"x" * 11
    assert cache.nbytes == 0
    assert cache.get("a", 0, lambda: b"y") == b"y"


def test_threads_do_not_upset_the_count() -> None:
    cache: Cache[bytes] = Cache(200, len)

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2000):
            size = rng.randrange(60)
            cache.get(rng.randrange(10), rng.randrange(2), lambda size=size: b"x" * size)

    threads = [threading.Thread(target=use, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 <= cache.nbytes <= 200
    for k in range(10):
        cache.get(k, "new", lambda: b"")
    assert cache.nbytes == 0
