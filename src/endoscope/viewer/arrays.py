"""Arrays: JSON followed by long arrays as bytes, which a browser reads without parsing (static/arrays.js).

Layout: four bytes with the length of the JSON (little-endian), the JSON, then the arrays that its ``arrays`` lists, in
order. Each array begins at a multiple of eight bytes.
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
    """``head`` as JSON and ``arrays`` as bytes: integers, float64 or booleans.

    >>> pack({"metric": "loss"}, {"indices": np.arange(3), "values/0": np.ones(3)})
    """
    kinds = {name: _kind(values) for name, values in arrays.items()}
    text = encode({**head, "arrays": [[name, kinds[name], len(values)] for name, values in arrays.items()]})
    parts = [len(text).to_bytes(4, "little"), text, _padding(4 + len(text))]
    for name, values in arrays.items():
        data = values.astype(TYPES[kinds[name]], copy=False).tobytes()
        parts += [data, _padding(len(data))]
    return b"".join(parts)


def _padding(length: int) -> bytes:
    return b" " * (-length % 8)


def _kind(values: NDArray[Any]) -> str:
    if values.dtype == bool:
        return "u1"
    if values.dtype.kind != "i":
        return "f8"
    fits = not len(values) or (values.min() >= _INT32.min and values.max() <= _INT32.max)
    return "i4" if fits else "i8"
