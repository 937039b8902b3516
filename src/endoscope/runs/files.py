"""The files of a run as a reader sees them: data from anywhere, which may be missing, cut, huge or meant to do harm.

No link is followed, nothing but regular files is read, none that is larger than its limit, and what is wrong with one
is kept as a sentence while the others are read. A file is read again when it has changed.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

MB = 1 << 20
JSON_LIMIT = 32 * MB
"""Bytes of a JSON file that is read at once: nested lists take twenty times as much in memory."""
_MAX_DEPTH = 64
_KEPT = 64 * MB  # of files, in bytes as they are on disk, whose content stays in memory
_TOLD = 10  # problems of one file that are told one by one

T = TypeVar("T")
Identity = tuple[int, ...]
Decoded = tuple[T, list[str]]
"""What a file says, and what is wrong with parts of it."""


class Unreadable(ValueError):
    """A file that is there and is not read; the text says why."""


class Missing(Unreadable):
    """There is no such file."""


@contextmanager
def opened(root: str | os.PathLike[str], name: str) -> Iterator[BinaryIO]:
    """A regular file below ``root``, such as ``epoch_4/training_losses.json``; no link may lead to it."""
    folders, _, last = name.rpartition("/")
    with open_folder(root, folders) as folder:
        fd = _open(last, os.O_NONBLOCK, folder)  # a pipe without a writer is not waited for
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unreadable("it is not a regular file")
    with os.fdopen(fd, "rb") as file:
        yield file


@contextmanager
def open_folder(root: str | os.PathLike[str], name: str = "") -> Iterator[int]:
    """The descriptor of a folder below ``root``, to which no link leads; ``root`` itself may be one."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise _refused(e) from None
    try:
        for step in name.split("/") if name else ():
            inner = _open(step, os.O_DIRECTORY, fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, dir_fd=folder)
    except OSError as e:
        raise _refused(e) from None


def _refused(e: OSError) -> Unreadable:
    if isinstance(e, FileNotFoundError):
        return Missing("it is missing")
    if e.errno in (errno.ELOOP, errno.ENOTDIR):
        return Unreadable("it is a link, or lies behind one, or is no folder; links are not followed")
    return Unreadable(f"it cannot be opened: {e.strerror}")


def identity(about: os.stat_result) -> Identity:
    """What changes when a file is replaced or written to."""
    return about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev


def load_json(file: BinaryIO, *, limit: int = JSON_LIMIT) -> Any:
    """The JSON in a file; ValueError or RecursionError says why there is none. Keys that come twice are refused."""
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise Unreadable(f"it has {size} bytes; at most {limit} are read")
    try:
        text = file.read(limit).decode()
    except UnicodeDecodeError as e:
        raise Unreadable(f"it is not UTF-8: {e.reason} at byte {e.start}") from None
    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as e:
        raise Unreadable(f"it is not JSON: {e}") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, none of whose keys comes twice: which of them would count is anybody's guess."""
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise Unreadable(f"the key {twice[:40]!r} comes twice")
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """The same JSON value, not nested deeper than anyone means it, and with text that can be encoded."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (dict, list)):
        if depth == _MAX_DEPTH:
            raise Unreadable(f"it is nested deeper than {_MAX_DEPTH} levels")
        if isinstance(value, list):
            return [plain(item, depth + 1) for item in value]
        return unique([(clean(key), plain(item, depth + 1)) for key, item in value.items()])
    return value


def clean(text: str) -> str:
    """Halves of surrogate pairs, which JSON can hold and UTF-8 cannot, become question marks."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, as it is; empty when there is none or it cannot be read."""
    try:
        with opened(path.parent, path.name) as file:
            found = load_json(file)
    except (ValueError, RecursionError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class _Kept:
    identity: Identity
    value: Any
    problems: list[str]

    @property
    def size(self) -> int:
        return self.identity[1]


class Files:
    """The files below one folder: read when asked for, and kept while they stay as they are on disk.

    >>> files = Files(work_dir)
    >>> files.read("config.json", lambda file: (load_json(file), []))
    {'epochs': 10, ...}
    >>> files.problems
    []

    May be used from several threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: dict[str, _Kept] = {}
        self._problems: dict[str, list[str]] = {}
        self._lock = threading.RLock()
        self._reading: dict[str, threading.RLock] = {}

    def read(
        self, name: str, decode: Callable[[BinaryIO], Decoded[T]], *, needed: Callable[[], bool] = lambda: True
    ) -> T | None:
        """What ``decode`` makes of a file; None when it cannot be read, and `problems` then says why.

        needed: whether it is a problem that the file is not there; asked when it is not.
        """
        with self._lock:
            alone = self._reading.setdefault(name, threading.RLock())
        with alone:  # whoever wants another file does not wait
            try:
                with opened(self.root, name) as file:
                    kept = self._known(name, file) or self._decoded(file, decode)
            except Missing as e:
                kept = _Kept((0, 0), None, [str(e)] if needed() else [])
            except (Unreadable, OSError) as e:
                kept = _Kept((0, 0), None, [str(e)])
            self._keep(name, kept)
            return kept.value  # type: ignore[no-any-return]

    def _known(self, name: str, file: BinaryIO) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(name)
        return kept if kept is not None and kept.identity == identity(os.fstat(file.fileno())) else None

    def _decoded(self, file: BinaryIO, decode: Callable[[BinaryIO], Decoded[Any]]) -> _Kept:
        which = identity(os.fstat(file.fileno()))
        try:
            return _Kept(which, *decode(file))
        except RecursionError:
            return _Kept(which, None, [f"it is nested deeper than {_MAX_DEPTH} levels"])
        except MemoryError:
            return _Kept(which, None, ["there is not enough memory to read it"])
        except (ValueError, OverflowError, OSError) as e:
            return _Kept(which, None, [str(e)])

    def _keep(self, name: str, kept: _Kept) -> None:
        with self._lock:
            self.note(name, kept.problems)
            self._kept.pop(name, None)
            self._kept[name] = kept  # the last one used comes last
            left = _KEPT - sum(one.size for one in self._kept.values())
            for other in list(self._kept):
                if left >= 0 or other == name:
                    break
                left += self._kept.pop(other).size

    def note(self, name: str, problems: list[str]) -> None:
        """Say what is wrong with something below the folder, in place of what was said of it before."""
        with self._lock:
            more = [f"and {len(problems) - _TOLD} more"] if len(problems) > _TOLD else []
            self._problems[name] = problems[:_TOLD] + more

    @property
    def problems(self) -> list[str]:
        """What was wrong when each file was last read, as ``name: cause``, by name."""
        with self._lock:
            return [f"{name}: {clean(problem)}" for name, each in sorted(self._problems.items()) for problem in each]
