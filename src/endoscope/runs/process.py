"""Which process a run has, told so that nobody takes another one for it: process numbers are used again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

State = Literal["alive", "gone", "unknown"]

_PROC = Path("/proc")


def identity(pid: int) -> str | None:
    """A text that no other process has, on this machine or another, now or later; None where that cannot be told.

    >>> identity(os.getpid())
    '6306e2fe-5499-4041-9998-450a8086225c pid:[4026531836] 1234 982451'

    It is made of the machine's boot, the namespace of process numbers (as containers have their own), the number, and
    when in the machine's life the process began.
    """
    here, began = _here(), _began(pid)
    return f"{here} {pid} {began}" if here and began else None


def state(wanted: str) -> State:
    """Whether the process that `identity` gave ``wanted`` for lives; unknown when it belongs to another machine."""
    here, _, rest = wanted.partition(" pid:")
    namespace, _, rest = rest.partition(" ")
    pid, _, began = rest.partition(" ")
    if f"{here} pid:{namespace}" != _here() or not pid.isdecimal() or not 1 <= len(pid) < 10:
        return "unknown"
    found = _began(int(pid))
    if found is None and _is_hidden(int(pid)):
        return "unknown"
    return "alive" if found == began else "gone"


def _here() -> str | None:
    """This boot of this machine, and our namespace of process numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """When the process began, in ticks since boot; None when there is none, or only its remains."""
    try:
        # The command's name stands in parentheses, and may hold some itself.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[19].decode() if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _is_hidden(pid: int) -> bool:
    """Whether it is there, and another user's, whom we may not look at."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
