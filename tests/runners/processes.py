"""Runs in subprocesses, alone or under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

CONFIG = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.runners.training import Net, config as make, evaluation, node

class Slow(Net):
    def forward(self, x):
        if os.environ.get("RANK") == {raises!r}:
            raise ValueError("the user's own")
        (Path({work_dir!r}).parent / f"pid_{{os.environ.get('RANK')}}").write_text(str(os.getpid()))
        time.sleep({pause})
        return super().forward(x)

config = make(Path({work_dir!r}), model=node(Slow), epochs={epochs})
"""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(
    folder: Path,
    ranks: int = 1,
    *,
    pause: float = 0.0,
    epochs: int = 3,
    raises: str = "no rank",
    job: str = "main",
    more: str = "",
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """A process that trains or evaluates. more: code after the config. options: of torchrun."""
    script = folder.parent / f"{folder.name}.py"
    text = CONFIG.format(root=str(ROOT), work_dir=str(folder), pause=pause, epochs=epochs, raises=raises)
    script.write_text(text + more + (f"config = evaluation(Path({str(folder)!r}))" if job == "eval" else ""))
    command = [*TORCHRUN, str(ranks), *options] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, *command, str(ROOT / f"{job}.py"), "--config-filepath", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
    )


def finish(folder: Path, ranks: int = 1, **options: Any) -> str:
    """Run to the end; returns what was printed."""
    process = start(folder, ranks, **options)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err[-3000:]
    return out


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has written a file."""
    until = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.005)
