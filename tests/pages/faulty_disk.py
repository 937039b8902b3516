"""A disk that fails: the calls of the kernel that write are counted, and the n-th of them goes wrong."""

from __future__ import annotations

import builtins
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

Fault = Literal["full", "broken", "short", "half"]
"""``full`` and ``broken``: ENOSPC and EIO. ``short``: half of the bytes are written, without an error, as a kernel may
do. ``half``: half of the bytes are written, and the next call meets a full disk."""

WRITES = ("writev", "pwrite", "write")
OTHERS = ("fsync", "ftruncate", "rename", "replace", "link")


class FaultyDisk:
    """Fails the ``at``-th counted call once, or that and all later ones; ``calls`` are the names counted so far."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.failed: list[str] = []
        self._at = 0
        self._fault: Fault = "full"
        self._lasting = self._half_done = False
        for name in (*WRITES, *OTHERS):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))
        monkeypatch.setattr(os, "open", self._opening(os.open))
        monkeypatch.setattr(builtins, "open", self._opening(builtins.open))

    def fail(self, at: int, fault: Fault, *, lasting: bool = False) -> None:
        self._at, self._fault, self._lasting = at, fault, lasting

    def mend(self) -> None:
        self._at = 0
        self._lasting = self._half_done = False

    def _due(self, name: str) -> bool:
        self.calls.append(name)
        if self._half_done:
            self._half_done = False
            self.failed.append(name)
            self._raise()
        due = len(self.calls) == self._at or (self._lasting and 0 < self._at <= len(self.calls))
        if due:
            self.failed.append(name)
        return due

    def _raise(self) -> None:
        code = errno.EIO if self._fault == "broken" else errno.ENOSPC
        raise OSError(code, os.strerror(code))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            syncs_a_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)  # not every system can
            if syncs_a_folder or not self._due(name):
                return real(*args, **kwargs)
            if name in WRITES and self._fault in ("short", "half"):
                self._half_done = self._fault == "half"
                return self._write_half(name, real, *args)
            if self._fault != "short":
                self._raise()
            return real(*args, **kwargs)

        return call

    def _write_half(self, name: str, real: Callable[..., Any], fd: int, data: Any, *offset: int) -> int:
        whole = b"".join(bytes(b) for b in data) if name == "writev" else bytes(data)
        part = whole[: max(1, len(whole) // 2)]
        return int(real(fd, [part] if name == "writev" else part, *offset))

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **kwargs: Any) -> Any:
            mode = args[0] if args else kwargs.get("mode", "r")
            writes = bool(mode & (os.O_WRONLY | os.O_RDWR)) if isinstance(mode, int) else mode[0] in "wax+"
            ours = writes and not isinstance(file, int) and self.folder in Path(file).parents
            if ours and self._due("open") and self._fault != "short":
                self._raise()
            return real(file, *args, **kwargs)

        return call
