"""Spans: where the tensors of a block are. Every line is untrusted: places and sizes are checked here, before any
byte is read. Pure functions; touches no file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from endoscope.errors import PageFormatError
from endoscope.pages.format import DTYPES
from endoscope.values import MAX_DEPTH

NESTED = frozenset((dict, list))


@dataclass(slots=True)
class Span:
    """Bytes of a block that one tensor reference points to."""

    ref: dict[str, Any]
    start: int
    nbytes: int
    row: int | None
    """The bytes of one datapoint's row; None if all datapoints share the tensor."""

    def part(self, row: int | None) -> tuple[int, int]:
        """Where the bytes for one datapoint start, and how many there are; None is all datapoints."""
        if row is None or self.row is None:
            return self.start, self.nbytes
        return self.start + row * self.row, self.row


def find_spans(tree: Any, block_bytes: int, count: int) -> list[Span]:
    """Every tensor reference of a block of ``count`` datapoints, by place.

    Raises `PageFormatError` unless each lies inside the block, has the size of its shape and dtype, and overlaps none.
    """
    spans = [_span(ref, block_bytes, count) for ref in _references(tree)]
    spans.sort(key=lambda s: (s.start, s.nbytes))
    end = 0
    for span in spans:
        if span.start < end:
            raise PageFormatError(f"tensor at {span.start} overlaps the one before it")
        end = span.start + span.nbytes
    return spans


def _references(tree: Any) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is dict and node.get("$") == "tensor":
            yield node
        elif type(node) in NESTED:
            inside: Collection[Any] = node if type(node) is list else node.values()
            if not NESTED.isdisjoint(map(type, inside)):  # a long list of numbers is skipped at once
                stack.extend(inside)


def _span(ref: dict[str, Any], block_bytes: int, count: int) -> Span:
    size, at = _nbytes(ref), ref.get("at")
    if type(at) is not int or at < 0 or at + size > block_bytes:
        raise PageFormatError(f"tensor of {size} bytes at {at} lies outside its block of {block_bytes}")
    batch, shape = ref.get("batch"), ref["shape"]
    if batch is None:
        return Span(ref, at, size, None)
    if batch not in ("slice", "one") or count < 2 or shape[:1] != [count]:
        raise PageFormatError("tensor marked as a batch that is not one")
    return Span(ref, at, size, size // count)


def _nbytes(ref: dict[str, Any]) -> int:
    dtype, shape = ref.get("dtype"), ref.get("shape")
    if type(dtype) is not str or dtype not in DTYPES:
        raise PageFormatError(f"tensor of unknown dtype {str(dtype)[:40]!r}")
    if type(shape) is not list or len(shape) > MAX_DEPTH:
        raise PageFormatError("tensor without a usable shape")
    size = DTYPES[dtype].torch.itemsize
    for n in shape:
        if type(n) is not int or not 0 <= n < 1 << 48:
            raise PageFormatError("tensor without a usable shape")
        size *= n
    return size
