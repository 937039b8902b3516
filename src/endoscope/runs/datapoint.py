"""Datapoint: one datapoint of an epoch, as its run kept it. Only what is asked for is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import DatapointNotFoundError, EndoscopeError
from endoscope.pages.reader import DebugOutputs
from endoscope.render.images import as_rgb
from endoscope.render.numbers import Array, Numbers, is_numbers
from endoscope.render.registry import About
from endoscope.runs import Epoch, Run
from endoscope.runs.datapoint_values import (
    Found,
    Prediction,
    class_maps,
    find,
    is_classification,
    is_of,
    label_of,
    prediction_of,
    scores_of_classes,
    tokens_of,
    walk,
)

PREDICTED = "predicted class"
"""The name of the item that says which class an output has at each pixel."""
MOST_BYTES = 64 << 20
"""Tensors of a debugger, or of a section, that are read for one datapoint.

The server takes 275 MB by itself with 10,000 datapoints and 20 epochs of scores, most of them for PyTorch: this comes
on top of it for as long as such a value is drawn.
"""
_TOKENS = 1 << 16  # bytes of inputs that may have tokens beside them
_SMALL = 1 << 20  # bytes of labels, outputs and meta_info that are read to say what they mean


class NotShown(EndoscopeError):
    """Something that the run does not hold, or that is too large; the text says which."""


class _Kept:
    """The pages of an epoch and its run, and the names of the classes: looked up once for many datapoints."""

    def __init__(self, run: Run, epoch: Epoch) -> None:
        self._run = run
        self._epoch = epoch

    @cached_property
    def datapoints(self) -> DebugOutputs | None:
        return self._run.datapoints

    @cached_property
    def outputs(self) -> DebugOutputs | None:
        return self._epoch.outputs

    @cached_property
    def debugger(self) -> DebugOutputs | None:
        return self._epoch.debugger

    @cached_property
    def class_names(self) -> tuple[str, ...] | None:
        return self._run.class_names


@dataclass(frozen=True)
class Datapoint:
    """One datapoint in one epoch.

    >>> datapoint = Datapoint(run, run.epoch(4), 17)
    >>> datapoint.label, datapoint.prediction.index
    (9, 5)
    >>> [found.name for found in datapoint.items("inputs")]
    ['inputs']

    What is on disk is looked up once: make a new one to see what a live run has written since.
    """

    run: Run
    epoch: Epoch
    idx: int
    _shared: _Kept | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _kept(self) -> _Kept:
        return self._shared or _Kept(self.run, self.epoch)

    def beside(self, idx: int) -> Datapoint:
        """Another datapoint of the same epoch."""
        return Datapoint(self.run, self.epoch, idx, self._kept)

    def kept(self) -> dict[str, NDArray[np.int64]]:
        """The datapoints of this epoch whose inputs, outputs and debug outputs were kept, in ascending order."""
        kept = self._kept
        pages = {"inputs": kept.datapoints, "outputs": kept.outputs, "debugger": kept.debugger}
        return {name: np.fromiter(each or (), np.int64) for name, each in pages.items()}

    @property
    def is_kept(self) -> bool:
        """Whether anything but its scores is there."""
        kept = self._kept
        return any(place is not None and self.idx in place for place in (kept.datapoints, kept.outputs, kept.debugger))

    # ---- reading
    def _pages(self, section: str) -> DebugOutputs:
        if section == "debugger":
            found, what = self._kept.debugger, "debug outputs"
        elif section == "outputs":
            found, what = self._kept.outputs, "outputs"
        else:
            found, what = self._kept.datapoints, section.replace("_", " ")
        if found is None:
            where = "This run" if section not in ("debugger", "outputs") or self.epoch.number is None else "This epoch"
            raise NotShown(f"{where} kept no {what}.{self._which(section)}")
        if self.idx not in found:
            raise NotShown(f"No {what} were kept of datapoint {self.idx}; {len(found):,} datapoints have them.")
        return found

    def _which(self, section: str) -> str:
        """The epochs that kept a section, where this one did not."""
        if section not in ("debugger", "outputs") or self.epoch.number is None:
            return ""
        kept = [str(epoch.number) for epoch in self.run.epochs if epoch.holds(section)]
        more = f" and {len(kept) - 10} more" if len(kept) > 10 else ""
        return f" These did: {', '.join(kept[:10])}{more}." if kept else ""

    def read(self, section: str, name: str | None = None, *, most: int = MOST_BYTES) -> Any:
        """The value of a section, or what the debugger ``name`` gave; `NotShown` when it is not there or too large."""
        pages, name = self._pages(section), name or section
        size = pages.size(self.idx, name)
        if size > most:
            raise NotShown(
                f"{name!r} has {size / (1 << 20):,.0f} MB of tensors here, and at most {most >> 20:,} MB are read. "
                "Load it in Python."
            )
        try:
            return pages.read(self.idx, name)
        except DatapointNotFoundError:
            raise NotShown(f"Datapoint {self.idx} has no {name.replace('_', ' ')}.") from None

    def debuggers(self) -> list[str]:
        """Which debuggers gave something."""
        return self._pages("debugger").list(self.idx)

    def notes(self) -> dict[str, Any]:
        """What is absent and why, failures, how often a layer was called."""
        try:
            return self._pages("debugger").notes(self.idx)
        except NotShown:
            return {}

    # ---- items
    def items(self, section: str, debugger: str | None = None) -> Iterator[Found]:
        """The values of a section other than ``debugger``, or of one debugger.

        Outputs that are a map for each class have the class with the largest one at each pixel before them.
        """
        value = self.read(section, debugger)
        if section == "outputs":
            for path, lookup, found in class_maps(value, self.labels, self._kept.class_names):
                yield Found(section, None, (*path, PREDICTED), found, lookup)
        yield from walk(section, value, debugger)

    def find(self, id: str) -> Found | None:
        """The item of that id; no other debugger is read."""
        for section in ("inputs", "labels", "meta_info", "outputs"):
            if is_of(id, section, ""):
                return next((found for found in self.items(section) if found.id == id), None)
        if is_of(id, "debugger"):
            for name in self.debuggers():
                if is_of(id, "debugger", name):
                    return find(id, "debugger", self.read("debugger", name), name)
        return None

    # ---- what it means
    def _small(self, section: str, most: int = _SMALL) -> Any:
        try:
            return self.read(section, most=most)
        except EndoscopeError:
            return None  # its own section says why

    @cached_property
    def labels(self) -> Any:
        return self._small("labels")

    @cached_property
    def label(self) -> int | None:
        return label_of(self.labels) if self.labels is not None else None

    @property
    def label_text(self) -> str | None:
        """The label on one line: the class's name or number, or short text."""
        if self.label is not None:
            return self.class_text(self.label)
        return self.labels if isinstance(self.labels, str) and len(self.labels) <= 200 else None

    def class_text(self, index: int) -> str:
        names = self._kept.class_names
        return names[index] if names is not None and 0 <= index < len(names) else str(index)

    @cached_property
    def row(self) -> Any:
        """The outputs of a classification, one a class; None when this is none."""
        found = scores_of_classes(self._small("outputs"))
        return found if is_classification(found, self.labels, self._kept.class_names) else None

    @cached_property
    def prediction(self) -> Prediction | None:
        return prediction_of(self.row) if self.row is not None else None

    @cached_property
    def tokens(self) -> tuple[str, ...] | None:
        return tokens_of(self._small("meta_info", _TOKENS), self._small("inputs", _TOKENS))

    @cached_property
    def _image(self) -> Array | None:
        try:
            found = list(self.items("inputs"))
        except EndoscopeError:
            return None
        for item in found:
            if is_numbers(item.value):
                image = as_rgb(Numbers(item.value), About(item.name, "inputs"))
                if image is not None:
                    return image
        return None

    def about(self, found: Found) -> About:
        """What a renderer may know of an item."""
        return About(
            name=found.key,
            section=found.section,
            debugger=found.debugger,
            class_names=self._kept.class_names,
            tokens=found.tokens or self.tokens,
            classification=found.section == "outputs" and is_row(found.value, self.row),
            image=lambda: self._image,
        )


def is_row(value: Any, row: Any) -> bool:
    """Whether a value is the row of outputs that was found; both may have been read on their own."""
    if row is None or not is_numbers(value) or tuple(value.shape) != tuple(row.shape):
        return False
    return bool(value.dtype == row.dtype)
