"""Datapoint: one datapoint of an epoch, as its run stored it. Values are read when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from endoscope.errors import DatapointNotFoundError, EndoscopeError
from endoscope.pages.reader import DebugOutputs
from endoscope.render.images import as_rgb
from endoscope.render.numbers import Array, Numbers, is_numbers
from endoscope.render.renderer import About
from endoscope.runs import Epoch, Run
from endoscope.runs.datapoint_values import (
    Item,
    Prediction,
    class_maps,
    is_classification,
    is_of,
    label_of,
    prediction_of,
    scores_of_classes,
    tokens_of,
    walk,
)
from endoscope.runs.ranking import Column

PREDICTED = "predicted class"
"""The name of the item with the class that an output predicts at each pixel."""
MOST_BYTES = 64 << 20
"""Bytes of tensors, of one debugger or section, that are read for one datapoint.

The server uses 275 MB without them for 10,000 datapoints and 20 epochs of scores, most of it for PyTorch; a value adds
to this while it is drawn.
"""
_STORED = ("inputs", "outputs", "debugger")  # each in its own pages
_OTHERS = ("inputs", "labels", "meta_info", "outputs")
_TOKENS = 1 << 16  # bytes of inputs that are searched for tokens
_SMALL = 1 << 20  # bytes of labels, outputs and meta_info that are read to interpret the datapoint


T = TypeVar("T")


class NotShown(EndoscopeError):
    """Something that the run does not hold, or that is too large; the text says which."""


@dataclass(frozen=True)
class Datapoint:
    """One datapoint in one epoch.

    >>> datapoint = Datapoint(run, run.epoch(4), 17)
    >>> datapoint.label, datapoint.prediction.index
    (9, 5)
    >>> [item.name for item in datapoint.items("inputs")]
    ['inputs']

    The pages on disk are looked up once: create another one to see what a live run has written since.
    """

    run: Run
    epoch: Epoch
    idx: int
    _shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The pages and class names, shared by all datapoints `beside` this one."""

    def beside(self, idx: int) -> Datapoint:
        """Another datapoint of the same epoch."""
        return Datapoint(self.run, self.epoch, idx, self._shared)

    def _once(self, name: str, look_up: Callable[[], T]) -> T:
        if name not in self._shared:
            self._shared[name] = look_up()
        return cast(T, self._shared[name])

    def _pages(self, section: str) -> DebugOutputs | None:
        """The pages of a section. Inputs, labels and meta_info are stored together, once per run."""
        if section == "debugger":
            return self._once(section, lambda: self.epoch.debugger)
        if section == "outputs":
            return self._once(section, lambda: self.epoch.outputs)
        return self._once("inputs", lambda: self.run.datapoints)

    @property
    def _class_names(self) -> tuple[str, ...] | None:
        return self._once("class_names", lambda: self.run.class_names)

    def stored(self) -> dict[str, NDArray[np.int64]]:
        """The datapoints of this epoch whose inputs, outputs and debug outputs are stored, in ascending order."""
        return {name: np.fromiter(self._pages(name) or (), np.int64) for name in _STORED}

    @property
    def is_stored(self) -> bool:
        """Whether anything in addition to its scores is stored."""
        return any(self.idx in (self._pages(name) or ()) for name in _STORED)

    # ---- reading
    def _stored(self, section: str) -> DebugOutputs:
        """The pages that hold a section of this datapoint; `NotShown` if there are none."""
        pages = self._pages(section)
        what = "debug outputs" if section == "debugger" else section.replace("_", " ")
        if pages is None and section in ("debugger", "outputs") and self.epoch.number is not None:
            raise NotShown(f"This epoch has no stored {what}.{self._elsewhere(section)}")
        if pages is None:
            raise NotShown(f"This run has no stored {what}.")
        if self.idx not in pages:
            raise NotShown(f"Datapoint {self.idx} has no stored {what}; {len(pages):,} datapoints have some.")
        return pages

    def _elsewhere(self, section: str) -> str:
        epochs = [str(epoch.number) for epoch in self.run.epochs if epoch.holds(section)]
        more = f" and {len(epochs) - 10} more" if len(epochs) > 10 else ""
        return f" Epochs that have some: {', '.join(epochs[:10])}{more}." if epochs else ""

    def read(self, section: str, name: str | None = None, *, most: int = MOST_BYTES) -> Any:
        """The value of a section, or of the debugger ``name``; `NotShown` if it does not exist or is too large."""
        pages, name = self._stored(section), name or section
        size = pages.size(self.idx, name)
        if size > most:
            raise NotShown(
                f"{name!r} has {size / (1 << 20):,.0f} MB of tensors, more than the {most >> 20:,} MB shown here. "
                "Load it in Python."
            )
        try:
            return pages.read(self.idx, name)
        except DatapointNotFoundError:
            raise NotShown(f"Datapoint {self.idx} has no {name.replace('_', ' ')}.") from None

    def debuggers(self) -> list[str]:
        """The debuggers that returned something."""
        return self._stored("debugger").list(self.idx)

    def notes(self) -> dict[str, Any]:
        """What is absent and why, failures, how often a layer was called."""
        try:
            return self._stored("debugger").notes(self.idx)
        except NotShown:
            return {}

    # ---- items
    def items(self, section: str, debugger: str | None = None) -> Iterator[Item]:
        """The items of a section other than ``debugger``, or of one debugger.

        Outputs with one map per class are preceded by an item with the class of the largest value at each pixel.
        """
        value = self.read(section, debugger)
        if section == "outputs":
            for path, lookup, classes in class_maps(value, self.labels, self._class_names):
                yield Item(section, None, (*path, PREDICTED), classes, lookup)
        yield from walk(section, value, debugger)

    def find(self, id: str) -> Item | None:
        """The item of that id. Only the debugger that it belongs to is read."""
        places: list[tuple[str, str | None]] = [(name, None) for name in _OTHERS if is_of(id, name, "")]
        if is_of(id, "debugger"):
            places += [("debugger", name) for name in self.debuggers() if is_of(id, "debugger", name)]
        items = (item for place in places for item in self.items(*place))
        return next((item for item in items if item.id == id), None)

    # ---- what it means
    def _small(self, section: str, most: int = _SMALL) -> Any:
        try:
            return self.read(section, most=most)
        except EndoscopeError:
            return None  # the section itself shows the reason

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
        return About(class_names=self._class_names).class_name(index) or str(index)

    @cached_property
    def row(self) -> Any:
        """The outputs of a classification, one per class; None if this is not a classification."""
        row = scores_of_classes(self._small("outputs"))
        return row if is_classification(row, self.labels, self._class_names) else None

    @cached_property
    def prediction(self) -> Prediction | None:
        return prediction_of(self.row) if self.row is not None else None

    @cached_property
    def tokens(self) -> tuple[str, ...] | None:
        return tokens_of(self._small("meta_info", _TOKENS), self._small("inputs", _TOKENS))

    @cached_property
    def _image(self) -> Array | None:
        try:
            values = [(item.name, item.value) for item in self.items("inputs") if is_numbers(item.value)]
        except EndoscopeError:
            return None
        images = (as_rgb(Numbers(value), About(name, "inputs")) for name, value in values)
        return next((image for image in images if image is not None), None)

    def about(self, item: Item) -> About:
        """What a renderer may know of an item."""
        return About(
            name=item.key,
            section=item.section,
            debugger=item.debugger,
            class_names=self._class_names,
            tokens=item.tokens or self.tokens,
            classification=item.section == "outputs" and _is_same(item.value, self.row),
            image=lambda: self._image,
        )


def worst_datapoints(epoch: Epoch, column: Column, n: int) -> Iterator[tuple[int, Datapoint]]:
    """The ``n`` datapoints that do worst, with their positions in the epoch's scores; none without the score."""
    table, first = epoch.scores, Datapoint(epoch.run, epoch, 0)  # the others share its open pages
    if table is not None:
        for at in column.worst_first()[:n].tolist():
            if not column.missing[at]:
                yield at, first.beside(int(table.indices[at]))


def _is_same(value: Any, row: Any) -> bool:
    """Whether a value is the row of outputs, judged by shape and dtype, because each may have been read separately."""
    if row is None or not is_numbers(value) or tuple(value.shape) != tuple(row.shape):
        return False
    return bool(value.dtype == row.dtype)
