"""Arrays: JSON with long arrays beside it as bytes, which a browser takes as they are (static/arrays.js).

Four bytes, the length of the JSON (little-endian); the JSON; then the arrays that its ``arrays`` names, in order. Each
begins at the next multiple of eight bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from endoscope.viewer.answers import encode

MEDIA_TYPE = "application/octet-stream"
TYPES: dict[str, np.dtype[Any]] = {
    "i4": np.dtype("<i4"),
    "i8": np.dtype("<i8"),
    "f8": np.dtype("<f8"),
    "u1": np.dtype("u1"),
}
_INT32 = np.iinfo(np.int32)


def pack(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """``head`` as JSON and ``arrays`` as they are: whole numbers, float64 or truth values.

    >>> pack({"metric": "loss"}, {"indices": np.arange(3), "values/0": np.ones(3)})
    """
    made = {name: _plain(values) for name, values in arrays.items()}
    told = [[name, kind, len(values)] for name, (kind, values) in made.items()]
    text = encode({**head, "arrays": told})
    parts = [len(text).to_bytes(4, "little"), text]
    parts.append(_gap(4 + len(text)))
    for kind, values in made.values():
        found = values.astype(TYPES[kind], copy=False).tobytes()
        parts += [found, _gap(len(found))]
    return b"".join(parts)


def _gap(length: int) -> bytes:
    return b" " * (-length % 8)


def _plain(values: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    if values.dtype == bool:
        return "u1", values
    if values.dtype.kind != "i":
        return "f8", values
    small = not len(values) or (values.min() >= _INT32.min and values.max() <= _INT32.max)
    return ("i4" if small else "i8"), values
