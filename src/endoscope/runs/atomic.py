"""Atomic writing: a file is written under another name, synced and renamed, so it is complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into. It replaces ``path`` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as e:
        if e.errno is not None and e.filename is None:
            e.filename = str(path)  # the error of a full disk names no file
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes. No process may be writing in the folder."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.[0-9]+", path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically. NaN and infinities become ``NaN`` and ``Infinity``, which Python's ``json`` reads."""
    with replacing(path) as file:
        # A lone surrogate, as in a file name that is not UTF-8, becomes JSON's own \udcxx.
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
