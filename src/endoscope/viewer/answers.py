"""Answers: values as the JSON that docs/viewer-api.md promises. Non-finite numbers become text, None becomes null."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from endoscope.render.plain import jsonable

Json = dict[str, Any]
Number = float | str | None


def numbers(values: NDArray[np.float64], missing: NDArray[np.bool_]) -> list[Number]:
    """An array; None where ``missing`` is set."""
    result: list[Number] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        result[at] = jsonable(values[at])
    for at in np.flatnonzero(missing).tolist():
        result[at] = None
    return result


def encode(value: Any) -> bytes:
    """JSON text; ValueError for a non-finite number that did not go through `jsonable` or `numbers`."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate, as in a file name that is not UTF-8, becomes JSON's own \udcxx.
    return text.encode(errors="backslashreplace")


def answer(value: Any, *, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def cached_answer(
    request: Request, tag: str, make_body: Callable[[], bytes], *, media_type: str = "application/json"
) -> Response:
    """An answer that the browser may store. While ``tag`` stays the same it is neither made nor sent again."""
    headers = {"ETag": f'"{tag}"'}
    if is_stored(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(make_body(), media_type=media_type, headers=headers)


def is_stored(request: Request, etag: str) -> bool:
    """Whether the browser already holds the answer with this ETag."""
    headers = request.headers.getlist("if-none-match")
    return etag in {tag.strip().removeprefix("W/") for header in headers for tag in header.split(",")}


def error(message: str, hint: str = "", *, status: int) -> Response:
    return answer({"error": {"message": message, "hint": hint}}, status=status)
