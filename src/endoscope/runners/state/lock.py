"""FolderLock: one process at a time runs in a folder. The kernel releases it when the process ends, however it ends.

The lock is on the folder itself, so no file is left behind. A file system without locks refuses no process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_open_fds: set[int] = set()


class FolderLock:
    """An exclusive lock on a folder.

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
            return _lock(fd, fcntl.LOCK_SH)
        finally:
            _close(fd)

    def take(self) -> bool:
        """Hold the lock until `release` or the end of the process; False if another process holds it."""
        fd = self._open()
        if not _lock(fd, fcntl.LOCK_EX):
            _close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        fd, self._fd = self._fd, -1
        _close(fd)

    def _open(self) -> int:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _open_fds.add(fd)
        return fd


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks
    return True


def _close(fd: int) -> None:
    if fd in _open_fds:  # in a forked child it is closed already
        _open_fds.remove(fd)
        os.close(fd)


def _close_in_child() -> None:
    """A forked worker must not keep the lock of a killed run. Closing its copy does not release the parent's."""
    while _open_fds:
        with contextlib.suppress(OSError):
            os.close(_open_fds.pop())


os.register_at_fork(after_in_child=_close_in_child)
