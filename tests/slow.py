"""The tests that `scripts/test --quick` leaves out: folders, files, or single tests as ``FILE::NAME``.

An entry belongs here when it takes more than a few seconds: a browser, killed processes, ranks, compilation, long
training, generated values.
"""

from __future__ import annotations

from collections.abc import Iterable

SLOW = (
    "tests/viewer/browser/",
    "tests/examples/",
    "tests/pages/test_kill.py",
    "tests/concurrency/test_ranks.py",
    "tests/runners/test_ranks.py",
    "tests/capturing/test_compile.py",
)


def is_slow(nodeid: str, slow: Iterable[str] = SLOW) -> bool:
    """Whether a test is in the list, or in a file or folder of the list.

    >>> is_slow("tests/pages/test_kill.py::test_a_kill[3]", ["tests/pages/test_kill.py::test_a_kill"])
    True
    """
    return any(
        nodeid == entry or nodeid.startswith((f"{entry.removesuffix('/')}/", f"{entry}::", f"{entry}["))
        for entry in slow
    )
