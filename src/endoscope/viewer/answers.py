"""Answers: values as the JSON that docs/viewer-api.md promises. Numbers that are not finite are text, None is none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

Number = float | str | None


def number(value: float | None) -> Number:
    """One number.

    >>> number(0.5), number(float("nan")), number(float("-inf"))
    (0.5, 'NaN', '-Infinity')
    """
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers(values: NDArray[np.float64], missing: NDArray[np.bool_] | None = None) -> list[Number]:
    """An array; None where there is no value."""
    found: list[Number] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        found[at] = number(float(values[at]))
    if missing is not None:
        for at in np.flatnonzero(missing).tolist():
            found[at] = None
    return found


def encode(value: Any) -> bytes:
    """JSON text; ValueError when a number in it is not finite, which `number` and `numbers` see to."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair, as in a file name that is no UTF-8, becomes JSON's own \udcxx.
    return text.encode(errors="backslashreplace")


def answer(value: Any, *, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def answer_once(request: Request, body: bytes, tag: str, *, media_type: str = "application/json") -> Response:
    """An answer that the browser may keep: asked for again it is not sent as long as ``tag`` stays the same."""
    headers = {"ETag": f'"{tag}"'}
    if headers["ETag"] in _tags(request.headers.getlist("if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _tags(headers: Iterable[str]) -> set[str]:
    return {tag.strip().removeprefix("W/") for header in headers for tag in header.split(",")}


def error(message: str, hint: str = "", *, status: int) -> Response:
    return answer({"error": {"message": message, "hint": hint}}, status=status)
