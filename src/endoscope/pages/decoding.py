"""Decoding: a value from its JSON and its tensors. Every line is untrusted: only the kinds that docs/page-format.md
lists are built. Pure functions; touches no file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from endoscope.errors import PageFormatError
from endoscope.pages import composites, scalars
from endoscope.pages.spans import NESTED
from endoscope.summaries import with_summaries
from endoscope.values import MAX_DEPTH, PerDatapoint

TensorOf = Callable[[dict[str, Any]], torch.Tensor]
"""The tensor of a reference, already cut to the datapoint's row."""


def decode(tree: Any, tensor_of: TensorOf, row: int | None) -> Any:
    """Rebuild the value of datapoint ``row``; None is the value of the complete batch."""
    decoder = _Decoder(tensor_of, row)
    try:
        value = decoder.decode(tree, 0)
        # Several numbers: the layer's first dimension is not the batch, and every datapoint gets all of them.
        return with_summaries(value, several=list) if decoder.summaries else value
    except RecursionError:
        raise PageFormatError("value nested too deeply") from None


# What torch and Python raise for parts that do not fit together.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


class _Decoder:
    def __init__(self, tensor_of: TensorOf, row: int | None) -> None:
        self._tensor_of = tensor_of
        self._row = row
        self.summaries = False
        """Whether the value holds a `Summary`."""

    def decode(self, node: Any, depth: int) -> Any:
        if depth > 4 * MAX_DEPTH:
            raise PageFormatError("value nested too deeply")
        if type(node) is list:
            return self._list(node, depth + 1)
        if type(node) is not dict:
            return node
        if node.get("$") is None:
            return {k: self.decode(v, depth + 1) if type(v) in NESTED else v for k, v in node.items()}
        try:
            return self._kind(node, depth + 1)
        except PageFormatError:
            raise
        except _MALFORMED as e:
            raise PageFormatError(f"malformed {str(node['$'])[:40]!r} value: {e}") from None

    def _list(self, node: list[Any], depth: int) -> list[Any]:
        if NESTED.isdisjoint(map(type, node)):
            return node.copy()
        return [self.decode(v, depth) for v in node]

    def _kind(self, node: dict[str, Any], depth: int) -> Any:
        kind = node["$"]
        if kind == "tensor":
            tensor = self._tensor_of(node)
            return tensor.numpy() if node.get("numpy") else tensor
        if kind == "each":
            return self._each(node["values"], depth)
        if kind in composites.COMPOSITES:
            return self._composite(node, depth)
        self.summaries |= kind == "summary"
        return scalars.decode(node, lambda v: self.decode(v, depth))

    def _each(self, values: Any, depth: int) -> Any:
        if self._row is None:
            return PerDatapoint(self.decode(values, depth))
        if type(values) is dict and values.get("$") == "floats":
            values = self.decode(values, depth)
        return self.decode(values[self._row], depth)

    def _composite(self, node: dict[str, Any], depth: int) -> torch.Tensor:
        parts = {k: self.decode(v, depth) for k, v in node["parts"].items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that some of these are in beta, or deprecated
            tensor = composites.put_together(node, parts)
            return tensor if self._row is None or "batch" not in node else composites.one_row(tensor, self._row)
