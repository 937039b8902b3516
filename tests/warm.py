"""A warm interpreter: torch is imported once, and each call runs in a child forked from it, which may be killed.

``WarmProcess().run("tests.module:function", **arguments)`` calls ``function(say, **arguments)`` in a fresh child, where
``say(value)`` reports a JSON value at once: what was said before a kill is known.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Say = Callable[[Any], None]
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit status (negative: the signal), what it said, what time and memory it took."""

    status: int
    said: list[Any]
    cpu_seconds: float
    peak_growth_mb: float
    stderr: str


class WarmProcess:
    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            text=True,
            cwd=ROOT,
        )

    def run(self, function: str, *, kill_after_s: float = 60.0, after_words: int = 0, **arguments: Any) -> Outcome:
        """Call ``function`` in a child, and kill it if it has not ended ``kill_after_s`` after its first words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"function": function, "kill_after_s": kill_after_s, "after_words": after_words, "arguments": arguments}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


# ---------------------------------------------------------------- in the warm process
def _memory_kb(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(field)


def _child(order: dict[str, Any], out: int, errors: int) -> None:
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _memory_kb("VmHWM")

    def say(value: Any) -> None:
        os.write(out, json.dumps({"said": value, "peak_kb": _memory_kb("VmHWM") - before}).encode() + b"\n")

    module, _, name = order["function"].partition(":")
    getattr(importlib.import_module(module), name)(say, **order["arguments"])


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    out, out_write = os.pipe()
    errors = os.memfd_create("stderr")
    if (child := os.fork()) == 0:
        status = 1
        try:
            _child(order, out_write, errors)
            status = 0
        except BaseException:
            import traceback

            os.write(errors, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(out_write)
    said, deadline = b"", time.monotonic() + (60 if order["after_words"] else order["kill_after_s"])
    while True:
        ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            deadline += 60
        elif chunk := os.read(out, 1 << 16):
            before, said = said.count(b"\n"), said + chunk
            if before < order["after_words"] <= said.count(b"\n"):
                deadline = time.monotonic() + order["kill_after_s"]
        else:
            break
    _, status, used = os.wait4(child, 0)
    os.close(out)
    os.lseek(errors, 0, os.SEEK_SET)
    with os.fdopen(errors, "rb") as f:
        stderr = f.read().decode(errors="replace")[-4000:]
    lines = [json.loads(line) for line in said.split(b"\n")[:-1]]
    peak = max((line["peak_kb"] for line in lines), default=0) / 1024
    return {
        "status": os.waitstatus_to_exitcode(status),
        "said": [line["said"] for line in lines],
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_growth_mb": peak,
        "stderr": stderr,
    }


def _main() -> None:
    import torch

    torch.set_num_threads(1)
    import endoscope.debuggers.wrappers.sequential_debugger
    import endoscope.pages.reader
    import endoscope.pages.verify  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
