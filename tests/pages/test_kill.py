"""A killed process loses nothing that was acknowledged, and leaves nothing that a reader stumbles over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.captures import files, opened
from tests.pages.deterministic import outputs
from tests.sameness import canonical
from tests.warm import ROOT, Outcome, WarmProcess

from endoscope.errors import PageError
from endoscope.pages.verify import verify_folder

KILLED = -9


def acknowledged(outcome: Outcome) -> int:
    """How many records a flush has acknowledged: those with a smaller index."""
    return max((said + 1 for said in outcome.said if isinstance(said, int)), default=0)


def check(folder: Path, count: int, floats: int = 300) -> int:
    """Every acknowledged record is there, and every one that is there is whole and right; returns how many."""
    found = verify_folder(folder)
    assert found == [], found
    with opened(folder) as got:
        assert got.damage == []
        indices = list(got)
        assert indices[:count] == list(range(count))
        for idx in indices:
            assert canonical(got[idx]) == canonical(outputs(idx, floats))
        return len(indices)


# ---------------------------------------------------------------- at random instants
@pytest.mark.parametrize(
    ("page_size_mb", "floats"),
    [(0.004, 50), (0.02, 300), (0.3, 300), (100, 3000)],
    ids=["tiny", "small", "middle", "large"],
)
def test_killed_at_any_moment(page_size_mb: float, floats: int, warm: WarmProcess, tmp_path: Path) -> None:
    rng = random.Random(page_size_mb)
    total = kept = pages = 0
    for k in range(30):
        folder = tmp_path / str(k)
        folder.mkdir()
        outcome = warm.run(
            "tests.pages.deterministic:write_until_killed",
            kill_after_s=rng.choice([0, rng.uniform(0, 0.02)]),
            after_words=rng.randrange(1, 8 if page_size_mb < 0.01 else 20),
            folder=str(folder),
            page_size_mb=page_size_mb,
            floats=floats,
        )
        assert outcome.status == KILLED, outcome.stderr
        total += acknowledged(outcome)
        kept += check(folder, acknowledged(outcome), floats)
        pages += len(files(folder, "safetensors"))
    assert kept >= total > 50
    assert pages > (40 if page_size_mb < 0.01 else 20)


# ---------------------------------------------------------------- ends that are no kill
ENDS = {
    "returns": "",
    "exits": "sys.exit(3)",
    "raises": "raise ValueError('the user')",
    "is interrupted": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_without_closing_loses_nothing(end: str, tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from tests.pages.deterministic import debugger, put
d = debugger(Path({str(tmp_path)!r}), page_size_mb=0.02)
for idx in range(200):
    put(d, idx, 300)
{ENDS[end]}
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=60
    )
    assert check(tmp_path, 200) == 200
    assert all(page.closed for page in opened(tmp_path).pages)


# ---------------------------------------------------------------- at every call of the kernel
RECORDS = 12


def every_call(warm: WarmProcess, function: str, tmp_path: Path, **arguments: Any) -> Any:
    """Run ``function`` again and again, killed at its first, second, ... call, until it ends by itself."""
    for n in range(1, 1000):
        folder = tmp_path / str(n)
        folder.mkdir()
        outcome = warm.run(f"tests.pages.deterministic:{function}", n=n, records=RECORDS, **paths(folder, arguments))
        assert outcome.status in (0, KILLED), outcome.stderr
        yield n, folder, outcome
        if outcome.status == 0:
            assert outcome.said[-1]["calls"] < n
            return


def paths(folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Fill the folder's name into the arguments."""
    return {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in arguments.items()}


@pytest.mark.parametrize("half", [False, True], ids=["before the call", "in the middle of the write"])
def test_killed_at_every_call_of_writing(half: bool, warm: WarmProcess, tmp_path: Path) -> None:
    faults, runs = [], 0
    for n, folder, outcome in every_call(warm, "write_dying", tmp_path, folder="{folder}", half=half):
        runs += 1
        try:
            check(folder, acknowledged(outcome))
        except AssertionError as e:
            faults.append(f"killed at call {n} ({acknowledged(outcome)} acknowledged): {str(e)[:200]}")
    assert runs > 40
    assert faults == []


@pytest.mark.parametrize("n", [1, 5, 9])
def test_twin_a_record_that_was_acknowledged_but_not_written_is_missed(
    n: int, warm: WarmProcess, tmp_path: Path
) -> None:
    outcome = warm.run("tests.pages.deterministic:write_lying", folder=str(tmp_path), n=n)
    assert outcome.status == KILLED, outcome.stderr
    with pytest.raises(AssertionError):
        check(tmp_path, acknowledged(outcome))


@pytest.mark.parametrize("other_disk", [False, True], ids=["same disk", "other disk"])
def test_killed_at_every_call_of_saving(other_disk: bool, warm: WarmProcess, tmp_path: Path) -> None:
    """What was spooled and flushed is found whole in the spool or in the target, whatever the moment."""
    faults, runs = [], 0
    (tmp_path / "spool").mkdir()
    for n, folder, outcome in every_call(
        warm, "save_dying", tmp_path, spool=str(tmp_path / "spool"), target="{folder}", other_disk=other_disk
    ):
        runs += 1
        places = [folder, *(tmp_path / "spool").iterdir()]
        found: set[int] = set()
        for place in places:
            with opened(place) as got:
                for idx in got:
                    try:
                        assert canonical(got[idx]) == canonical(outputs(idx))
                        found.add(idx)
                    except PageError:
                        continue
        if found != set(range(acknowledged(outcome))):
            missing = set(range(acknowledged(outcome))) - found
            faults.append(f"killed at call {n}: {sorted(missing)} are in neither folder")
        for spool in (tmp_path / "spool").iterdir():
            for file in spool.iterdir():
                file.unlink()
            spool.rmdir()
    assert runs > 5
    assert faults == []
