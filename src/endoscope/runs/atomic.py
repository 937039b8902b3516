"""Files that are whole or not there: written beside their place, synced, and put into it in one step."""

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
    """A file to write into, which takes the place of ``path`` when the block ends without an error."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as e:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(e, OSError) and e.errno is not None and e.filename is None:
            e.filename = str(path)  # a full disk: which file it was for
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left beside the files that they were writing. Nobody may be writing there now."""
    for beside in folder.glob(".*"):
        if re.fullmatch(r"\..+\.[0-9]+", beside.name) and beside.is_file():
            beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """NaN and infinities are written as ``NaN`` and ``Infinity``, which Python's ``json`` reads."""
    with replacing(path) as file:
        # Half of a surrogate pair, as in a file name that is no UTF-8, becomes JSON's own \udcxx.
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
