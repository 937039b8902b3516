"""The identity of a run's process. A process id is not enough, because ids are reused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

State = Literal["alive", "gone", "unknown"]

_PROC = Path("/proc")


def identity(pid: int) -> str | None:
    """A text that no other process has, on any machine, at any time; None on systems without ``/proc``.

    >>> identity(os.getpid())
    '6306e2fe-5499-4041-9998-450a8086225c pid:[4026531836] 1234 982451'

    It consists of the boot id, the PID namespace (each container has its own), the process id and the start time in
    clock ticks since boot.
    """
    machine, start = _machine(), _start_time(pid)
    return f"{machine} {pid} {start}" if machine and start else None


def state(recorded: str) -> State:
    """Whether the process with this recorded `identity` is alive; unknown for another machine or container."""
    boot, _, rest = recorded.partition(" pid:")
    namespace, _, rest = rest.partition(" ")
    pid, _, start = rest.partition(" ")
    if f"{boot} pid:{namespace}" != _machine() or not pid.isdecimal() or not 1 <= len(pid) < 10:
        return "unknown"
    current = _start_time(int(pid))
    if current is None and _is_hidden(int(pid)):
        return "unknown"
    return "alive" if current == start else "gone"


def _machine() -> str | None:
    """The boot of this machine and our PID namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """The start of a process in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        # The command's name is in parentheses and may contain parentheses itself.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[19].decode() if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _is_hidden(pid: int) -> bool:
    """Whether the process exists but belongs to another user, so that /proc may hide it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
