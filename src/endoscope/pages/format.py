"""The bytes of a page: versions and limits, sealed lines, and how each dtype is stored.

docs/page-format.md is the specification. Pure functions; touches no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from endoscope.errors import PageFormatError

VERSION = 1
MAX_LINE = 32 << 20
"""The longest line, in bytes, that is written or read. Large lists of numbers should be tensors."""
MAX_CONTAINERS = 1_000_000
"""The most lists and objects in a line: an empty list takes three bytes there and twenty times that in memory."""
MANY_FLOATS = 16
"""From this length a list of floats is stored as bytes: as text it takes ten times as long, both ways."""
ALIGN = 8
"""Every block starts at a multiple of this, so that any reader can view the bytes without a copy."""

_LINE_END = b',"line":"'
_SEAL = len(_LINE_END) + 16 + len(b'"}')


@dataclass(frozen=True, slots=True)
class Dtype:
    """How a torch dtype is stored: its safetensors name, and the dimension that complex numbers add there."""

    torch: torch.dtype
    safetensors: str
    extra: tuple[int, ...] = ()
    numpy: np.dtype[Any] | None = None


def _dtypes() -> dict[str, Dtype]:
    plain = {"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "complex64": "C64",
             "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
             "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"}  # fmt: skip
    table = {name: Dtype(getattr(torch, name), tag, numpy=np.dtype(name)) for name, tag in plain.items()}
    table["complex128"] = Dtype(torch.complex128, "F64", (2,), np.dtype("complex128"))
    table["complex32"] = Dtype(torch.complex32, "F16", (2,))
    not_in_numpy = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
                    "float8_e4m3fnuz": "U8", "float8_e5m2fnuz": "U8", "float8_e8m0fnu": "U8"}  # fmt: skip
    return table | {n: Dtype(getattr(torch, n), tag) for n, tag in not_in_numpy.items() if hasattr(torch, n)}


DTYPES = _dtypes()
NAMES = {d.torch: name for name, d in DTYPES.items()}


def checksum(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """The checksum of the bytes of several arrays, one after the other."""
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(array.data)
    return digest.hexdigest()


# ---------------------------------------------------------------- lines
to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_from_json = json.JSONDecoder().decode


def seal(body: bytes) -> bytes:
    """Complete a line: ``body`` is a JSON object without its closing brace; its checksum becomes the last member."""
    return b'%s%s%016x"}\n' % (body, _LINE_END, xxhash.xxh3_64_intdigest(body))


def sealed(members: dict[str, Any]) -> bytes:
    return seal(to_json(members).encode()[:-1])


def is_sealed(line: bytes) -> bool:
    """Whether a line (without its newline) is complete and unchanged."""
    body = line[:-_SEAL]
    return line[-_SEAL:] == b'%s%016x"}' % (_LINE_END, xxhash.xxh3_64_intdigest(body))


def containers(line: bytes) -> int:
    """An upper bound of how many lists and objects a line holds."""
    return line.count(b"[") + line.count(b"{")


def unseal(line: bytes) -> dict[str, Any]:
    """The members of a line; raises `PageFormatError` with the cause if it is not complete."""
    if len(line) > MAX_LINE:
        raise PageFormatError(f"line of {len(line)} bytes, longer than any that is written")
    if not is_sealed(line):
        raise PageFormatError("checksum of the line does not match")
    if len(line) > MAX_CONTAINERS and containers(line) > MAX_CONTAINERS:
        raise PageFormatError(f"line of more than {MAX_CONTAINERS} lists and objects")
    try:
        members = _from_json(line.decode())
    except (ValueError, RecursionError) as e:
        raise PageFormatError(f"line is not JSON ({type(e).__name__})") from None
    if not isinstance(members, dict):
        raise PageFormatError("line is not a JSON object")
    return members
