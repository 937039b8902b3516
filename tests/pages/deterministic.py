"""Records that follow from their index, so that whoever reads them can tell what they must be; and children that write
them until they are killed, at any moment or at the n-th call of the kernel.
"""

from __future__ import annotations

import builtins
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.captures import datapoint, debugger
from tests.warm import Say

from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger


def outputs(idx: int, floats: int = 300) -> dict[str, Any]:
    """Tensors, text and sizes that differ from record to record."""
    rng = np.random.default_rng(idx)
    size = 1 + idx * 7919 % floats
    return {
        "features": {"map": torch.from_numpy(rng.standard_normal((1, size), np.float32)), "layer": f"layer {idx}"},
        "scores": [idx, idx / 7, None],
        "mask": torch.from_numpy(rng.integers(0, 256, size % 50, np.uint8)),
    }


def put(d: SequentialDebugger, idx: int, floats: int) -> None:
    d.add_to_buffer(outputs(idx, floats), datapoint(idx))


def write_until_killed(say: Say, folder: str, page_size_mb: float, floats: int) -> None:
    """Say an index once everything up to it was acknowledged by a flush; -1 before the first."""
    d = debugger(Path(folder), page_size_mb=page_size_mb)
    say(-1)
    for idx in range(100_000):
        put(d, idx, floats)
        if idx % 5 == 4 and d.flush():
            say(idx)


# ---------------------------------------------------------------- dying at the n-th call
CALLS = ["writev", "pwrite", "fsync", "ftruncate", "rename", "replace", "link", "unlink", "rmdir", "truncate"]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(n: int, *, half: bool = False) -> Callable[[], int]:
    """Kill this process at the n-th call that changes the disk; with ``half``, after half of the bytes of that write.

    Returns how to ask for the number of calls so far.
    """
    calls = 0

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if name == "open" and not _creates(args, kwargs):
                return real(*args, **kwargs)
            calls += 1
            if calls == n:
                if half and name == "writev":
                    whole = b"".join(bytes(b) for b in args[1])
                    os.write(args[0], whole[: len(whole) // 2])
                elif half and name == "pwrite":
                    real(args[0], args[1][: len(args[1]) // 2], args[2])
                _die()
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    os.open = counted("open", os.open)
    builtins.open = counted("open", builtins.open)  # type: ignore[assignment]
    shutil.copyfile = counted("copyfile", shutil.copyfile)
    return lambda: calls


def _creates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    return bool(mode & (os.O_WRONLY | os.O_RDWR)) if isinstance(mode, int) else mode[0] in "wax" or "+" in mode


def write_lying(say: Say, folder: str, n: int) -> None:
    """Acknowledge what was not even put, and die."""
    with debugger(Path(folder)) as d:
        die_at(n)
        for idx in range(1000):
            say(idx)
            put(d, idx, 300)


def write_dying(say: Say, folder: str, n: int, half: bool, records: int) -> None:
    """Write ``records`` over several pages and close, unless call ``n`` comes first."""
    with debugger(Path(folder), page_size_mb=0.006) as d:
        calls = die_at(n, half=half)
        for idx in range(records):
            put(d, idx, 300)
            if d.flush():
                say(idx)
    say({"calls": calls()})


def save_dying(say: Say, spool: str, target: str, n: int, records: int, other_disk: bool) -> None:
    """Spool ``records``, then die at call ``n`` of moving them to ``target``."""
    d = debugger(None, page_size_mb=0.006, spool_dir=spool)
    for idx in range(records):
        put(d, idx, 300)
    assert d.flush()
    say(records - 1)
    if other_disk:
        _make_renaming_fail(Path(spool))
    calls = die_at(n)
    d.save_all(target)
    say({"calls": calls()})


def _make_renaming_fail(spool: Path) -> None:
    """As if the spool were on another file system."""

    def across(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if (spool in Path(source).parents) != (spool in Path(target).parents):
                raise OSError(18, "Invalid cross-device link")
            return real(source, target, *args, **kwargs)

        return call

    for name in ("rename", "replace", "link"):
        setattr(os, name, across(getattr(os, name)))
