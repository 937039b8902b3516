"""The tests that `scripts/test --quick` leaves out: folders, files, or single tests as ``FILE::NAME``.

An entry belongs here when it takes more than a few seconds: a browser, killed processes, ranks, compilation, long
training, generated values.
"""

from __future__ import annotations

from collections.abc import Iterable

SLOW = (
    "tests/architecture/test_import_cost.py",
    "tests/capturing/test_compile.py",
    "tests/capturing/test_snapshot.py::test_no_tensor_kills_the_process",
    "tests/commands/test_demo.py",
    "tests/concurrency/test_fork.py",
    "tests/concurrency/test_ranks.py",
    "tests/examples/",
    "tests/format/test_damage.py",
    "tests/format/test_round_trip.py",
    "tests/pages/test_disk_faults.py",
    "tests/pages/test_kill.py",
    "tests/report/test_page.py",
    "tests/runners/state/test_lock.py",
    "tests/runners/loops/test_ranks.py",
    "tests/runners/state/test_resume.py",
    "tests/runners/state/test_resume_variants.py",
    "tests/runners/loops/test_streams.py",
    "tests/runners/loops/test_wrong_use.py",
    "tests/runs/test_status.py::test_a_real_process_that_is_killed",
    "tests/viewer/browser/",
    "tests/viewer/test_serve.py",
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
