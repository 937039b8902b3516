"""Files that are whole or not there: written beside their place, synced, and put into it in one step."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of ``path`` when the block ends without an error."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """NaN and infinities are written as ``NaN`` and ``Infinity``, which Python's ``json`` reads."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode())
