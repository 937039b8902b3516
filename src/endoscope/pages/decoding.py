"""Decoding: where a block's tensors lie, and a value from its JSON and those tensors.

Everything in a line may be an enemy's: places and sizes are checked before anything is read, and nothing is built but
what docs/page-format.md lists. Pure functions; no file is touched here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from endoscope.errors import PageFormatError
from endoscope.pages import scalars
from endoscope.pages.format import DTYPES
from endoscope.summaries import summaries_made
from endoscope.values import MAX_DEPTH, PerDatapoint

_NESTED = frozenset((dict, list))


@dataclass(slots=True)
class Span:
    """Bytes of a block that one tensor reference points to; ``row`` is what one datapoint of the batch takes."""

    ref: dict[str, Any]
    start: int
    nbytes: int
    row: int | None


def spans(tree: Any, block_bytes: int, count: int) -> list[Span]:
    """Every tensor reference of a block, checked: inside it, of the size its shape and dtype say, none overlapping."""
    found: list[Span] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is list:
            inside: Collection[Any] = node
        elif type(node) is not dict:
            continue
        elif node.get("$") == "tensor":
            found.append(_span(node, block_bytes, count))
            continue
        else:
            inside = node.values()
        if not _NESTED.isdisjoint(map(type, inside)):  # a long list of numbers is passed over as a whole
            stack.extend(inside)
    if len(found) > 1:
        found.sort(key=lambda s: (s.start, s.nbytes))
    end = 0
    for s in found:
        if s.start < end:
            raise PageFormatError(f"tensor at {s.start} overlaps the one before it")
        end = s.start + s.nbytes
    return found


def _span(ref: dict[str, Any], block_bytes: int, count: int) -> Span:
    dtype, shape, at = ref.get("dtype"), ref.get("shape"), ref.get("at")
    if type(dtype) is not str or dtype not in DTYPES:
        raise PageFormatError(f"tensor of unknown dtype {str(dtype)[:40]!r}")
    if type(shape) is not list or len(shape) > MAX_DEPTH:
        raise PageFormatError("tensor without a usable shape")
    size = DTYPES[dtype].torch.itemsize
    for n in shape:
        if type(n) is not int or not 0 <= n < 1 << 48:
            raise PageFormatError("tensor without a usable shape")
        size *= n
    if type(at) is not int or at < 0 or at + size > block_bytes:
        raise PageFormatError(f"tensor of {size} bytes at {at} lies outside its block of {block_bytes}")
    batch = ref.get("batch")
    if batch is None:
        return Span(ref, at, size, None)
    if batch not in ("slice", "one") or count < 2 or not shape or shape[0] != count:
        raise PageFormatError("tensor marked as a batch, but it is none")
    return Span(ref, at, size, size // count)


def decode(tree: Any, tensor_at: Callable[[dict[str, Any]], torch.Tensor], row: int | None) -> Any:
    """Rebuild a value. ``tensor_at`` gives a reference's tensor, already cut to ``row``; None is the whole batch."""
    decoder = _Decoder(tensor_at, row)
    try:
        value = decoder.decode(tree, 0)
        # Several numbers: the layer's first dimension is not the batch, and everyone is given all of them.
        return summaries_made(value, several=list) if decoder.summaries else value
    except RecursionError:
        raise PageFormatError("value nested too deeply") from None


class _Decoder:
    def __init__(self, tensor_at: Callable[[dict[str, Any]], torch.Tensor], row: int | None) -> None:
        self.tensor_at = tensor_at
        self.row = row
        self.summaries = False

    def decode(self, node: Any, depth: int) -> Any:
        if depth > 4 * MAX_DEPTH:
            raise PageFormatError("value nested too deeply")
        if type(node) is list:
            if _NESTED.isdisjoint(map(type, node)):
                return node.copy()
            return [self.decode(v, depth + 1) if type(v) in _NESTED else v for v in node]
        if type(node) is not dict:
            return node
        kind = node.get("$")
        if kind is None:
            if _NESTED.isdisjoint(map(type, node.values())):
                return node.copy()
            return {k: self.decode(v, depth + 1) if type(v) in _NESTED else v for k, v in node.items()}
        try:
            if kind == "tensor":
                t = self.tensor_at(node)
                return t.numpy() if node.get("numpy") else t
            if kind == "each":
                if self.row is None:
                    return PerDatapoint(self.decode(node["values"], depth + 1))
                values = node["values"]
                if type(values) is dict and values.get("$") == "floats":
                    values = self.decode(values, depth + 1)
                return self.decode(values[self.row], depth + 1)
            if kind in scalars.COMPOSITES:
                parts = {k: self.decode(v, depth + 1) for k, v in node["parts"].items()}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch says of some of these that they are young, or old
                    whole = scalars.put_together(node, parts)
                    return whole if self.row is None or "batch" not in node else scalars.one_row(whole, self.row)
            self.summaries |= kind == "summary"
            return scalars.decode(node, lambda v: self.decode(v, depth + 1))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as e:
            if isinstance(e, PageFormatError):
                raise
            raise PageFormatError(f"malformed {str(kind)[:40]!r} value: {e}") from None
