"""FolderLock: one process at a time runs in a folder. The kernel keeps it, and lets go however the process ends.

It is a lock on the folder itself, so that no file is left behind. Where a file system has no locks, nobody is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

PATIENCE_S = 1.0
"""How long `FolderLock.take` waits: another process may be looking whether the folder is free."""
_AGAIN_S = 0.02

_held: set[int] = set()


class FolderLock:
    """Taken for as long as something runs in the folder.

    >>> lock = FolderLock(work_dir)
    >>> lock.take()                     # False: another process has it
    True
    >>> lock.release()
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def is_free(self) -> bool:
        """Whether `take` would succeed now."""
        fd = self._open()
        try:
            return _try(fd, fcntl.LOCK_SH)  # shared, so that several may look at once
        finally:
            _close(fd)

    def take(self) -> bool:
        """Have it until `release`, or the end of the process; False when another has it."""
        fd = self._open()
        until = time.monotonic() + PATIENCE_S
        while not _try(fd, fcntl.LOCK_EX):
            if time.monotonic() > until:
                _close(fd)
                return False
            time.sleep(_AGAIN_S)
        self._fd = fd
        return True

    def release(self) -> None:
        """May be called twice, and without `take`."""
        fd, self._fd = self._fd, -1
        _close(fd)

    def _open(self) -> int:
        """The folder's descriptor; -1 where it may not be read, and there are no locks either."""
        try:
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return -1
        _held.add(fd)
        return fd


def _try(fd: int, kind: int) -> bool:
    if fd < 0:
        return True
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # there are no locks here
    return True


def _close(fd: int) -> None:
    if fd in _held:  # not in a forked child, where it is closed already
        _held.remove(fd)
        os.close(fd)


def _let_go_in_child() -> None:
    """A forked worker must not keep the lock of a run that was killed; closing its copy leaves the parent's."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)
