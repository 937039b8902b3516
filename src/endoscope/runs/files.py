"""Reading the files of a run. They may be missing, cut, huge or malicious.

Only regular files are read, no link is followed, and each file has a size limit. A problem with one file becomes a
sentence, and the other files stay readable. A file is read again when it has changed.
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
"""Bytes of a JSON file that is read at once; nested lists take twenty times as much memory."""
_MAX_DEPTH = 64
_CACHE = 64 * MB  # of files, in bytes on disk, whose contents stay in memory
_MAX_PROBLEMS = 10  # of one file; the others are counted

T = TypeVar("T")
Identity = tuple[int, ...]
Decoded = tuple[T, list[str]]
"""The contents of a file, and the problems with parts of it."""


class Unreadable(ValueError):
    """A file that exists but is not read; the message is the reason."""


class Missing(Unreadable):
    """There is no such file."""


@contextmanager
def opened(root: str | os.PathLike[str], name: str) -> Iterator[BinaryIO]:
    """A regular file below ``root``, such as ``epoch_4/training_losses.json``; no link may lead to it."""
    folders, _, last = name.rpartition("/")
    with open_folder(root, folders) as folder:
        fd = _open(last, os.O_NONBLOCK, folder)  # opening a pipe without a writer must not block
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unreadable("it is not a regular file")
    with os.fdopen(fd, "rb") as file:
        yield file


@contextmanager
def open_folder(root: str | os.PathLike[str], name: str = "") -> Iterator[int]:
    """The descriptor of a folder below ``root``; no link may lead to it, but ``root`` itself may be a link."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise _reason(e) from None
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
        raise _reason(e) from None


def _reason(e: OSError) -> Unreadable:
    if isinstance(e, FileNotFoundError):
        return Missing("it is missing")
    if e.errno in (errno.ELOOP, errno.ENOTDIR):
        return Unreadable("it is a link, or is behind a link, or is not a folder; links are not followed")
    return Unreadable(f"it cannot be opened: {e.strerror}")


def identity(about: os.stat_result) -> Identity:
    """Numbers that change when a file is replaced or written to."""
    return about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev


def load_json(file: BinaryIO, *, limit: int = JSON_LIMIT) -> Any:
    """The JSON in a file; ValueError or RecursionError if it has none. Duplicate keys are refused."""
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
    """A JSON object without duplicate keys: readers disagree about which one counts."""
    table = dict(pairs)
    if len(table) != len(pairs):
        ((duplicate, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise Unreadable(f"the key {duplicate[:40]!r} occurs twice")
    return table


def checked(value: Any, depth: int = 0) -> Any:
    """A JSON value with text that UTF-8 can encode; refused if it is nested too deeply."""
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth == _MAX_DEPTH:
        raise Unreadable(f"it is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        return [checked(item, depth + 1) for item in value]
    return unique([(clean(key), checked(item, depth + 1)) for key, item in value.items()])


def clean(text: str) -> str:
    """Text with question marks for lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object as it is; empty if it is missing or cannot be read."""
    try:
        with opened(path.parent, path.name) as file:
            content = load_json(file)
    except (ValueError, RecursionError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class _Content:
    identity: Identity
    value: Any
    problems: list[str]


_NO_FILE = (0, 0)


class Files:
    """The files below one folder, read on demand and cached until they change on disk.

    >>> files = Files(work_dir)
    >>> files.read("config.json", lambda file: (load_json(file), []))
    {'epochs': 10, ...}
    >>> files.problems
    []

    May be used from several threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[str, _Content] = {}  # the most recently used last
        self._problems: dict[str, list[str]] = {}
        self._lock = threading.RLock()
        self._reading: dict[str, threading.RLock] = {}

    def read(
        self, name: str, decode: Callable[[BinaryIO], Decoded[T]], *, needed: Callable[[], bool] = lambda: True
    ) -> T | None:
        """The decoded contents of a file; None if it cannot be read, and `problems` then has the reason.

        needed: called when the file is missing; whether that is a problem.
        """
        with self._lock:
            lock_of_file = self._reading.setdefault(name, threading.RLock())
        with lock_of_file:  # readers of other files do not wait
            try:
                with opened(self.root, name) as file:
                    content = self._cached(name, file) or _decoded(file, decode)
            except Missing as e:
                content = _Content(_NO_FILE, None, [str(e)] if needed() else [])
            except (Unreadable, OSError) as e:
                content = _Content(_NO_FILE, None, [str(e)])
            self._add(name, content)
            return content.value  # type: ignore[no-any-return]

    def _cached(self, name: str, file: BinaryIO) -> _Content | None:
        with self._lock:
            content = self._cache.get(name)
        return content if content is not None and content.identity == identity(os.fstat(file.fileno())) else None

    def _add(self, name: str, content: _Content) -> None:
        with self._lock:
            self.note(name, content.problems)
            self._cache.pop(name, None)
            self._cache[name] = content
            excess = sum(each.identity[1] for each in self._cache.values()) - _CACHE
            for other in list(self._cache):
                if excess <= 0 or other == name:
                    break
                excess -= self._cache.pop(other).identity[1]

    def note(self, name: str, problems: list[str]) -> None:
        """Record the problems with something below the folder, in place of its earlier ones."""
        with self._lock:
            more = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
            self._problems[name] = problems[:_MAX_PROBLEMS] + more

    @property
    def problems(self) -> list[str]:
        """The problems when each file was last read, as ``name: cause``, sorted by name."""
        with self._lock:
            return [f"{name}: {clean(problem)}" for name, each in sorted(self._problems.items()) for problem in each]


def _decoded(file: BinaryIO, decode: Callable[[BinaryIO], Decoded[Any]]) -> _Content:
    which = identity(os.fstat(file.fileno()))
    try:
        return _Content(which, *decode(file))
    except RecursionError:
        return _Content(which, None, [f"it is nested deeper than {_MAX_DEPTH} levels"])
    except MemoryError:
        return _Content(which, None, ["there is not enough memory to read it"])
    except (ValueError, OverflowError, OSError) as e:
        return _Content(which, None, [str(e)])
