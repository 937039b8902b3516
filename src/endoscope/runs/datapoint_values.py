"""A datapoint as flat items: the values of its sections, each under an id that is the same in every epoch.

A section is walked down to tensors, tables of scalars, lists and texts. Walking is bounded: an item of its own says
what is left out because there is too much of it or it is nested too deeply. Nothing is drawn here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from endoscope.render.numbers import Numbers, is_numbers, numbers_of
from endoscope.render.plain import CELL, SHORT_LIST, is_scalar, key_text, keys_of, members, shortened
from endoscope.render.registry import registered
from endoscope.render.tables import probabilities

SECTIONS = {
    "inputs": "Inputs",
    "labels": "Labels",
    "meta_info": "Meta info",
    "outputs": "Outputs",
    "debugger": "Debug outputs",
}
"""The sections of a datapoint, in order, and their titles."""

MOST_ITEMS = 200
"""Items of one section, or of one debugger."""
MOST_DEPTH = 24
_MOST_MEMBERS = 20_000  # members of containers that are looked at
_LABEL_KEYS = ("label", "labels", "class", "target", "class_label", "y")
_OUTPUT_KEYS = ("logits", "outputs", "output", "scores", "probabilities", "probs", "pred", "out")
_TOKEN_KEYS = ("tokens", "token_strings", "words")
_MOST_CLASSES = 100_000

Key = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One value of a section."""

    section: str
    debugger: str | None
    path: Key
    """Keys from the value of the section or debugger down to this one."""
    value: Any
    lookup: str = ""
    """Python that looks it up in the value of the section or debugger, as far as that is possible."""
    tokens: tuple[str, ...] | None = None
    """The texts of the tokens that the same debugger returned."""
    group: bool = False
    """Whether it holds only the scalars of a container that holds more."""
    is_note: bool = False
    """Whether it is not a value but a note of what is not shown."""

    @property
    def id(self) -> str:
        return item_id(self.section, self.debugger, (*self.path, "\0values") if self.group else self.path)

    @property
    def name(self) -> str:
        """Display name: its keys, or the name of the debugger or section if it is all of that."""
        inside = "/".join(self.path)
        if self.group:
            inside = f"{inside}/values" if inside else "values"
        return shortened(inside or self.debugger or self.section)

    @property
    def key(self) -> str:
        """Its keys, as renderers are registered for them; empty for the complete value of a debugger."""
        return "/".join(self.path)


def item_id(section: str, debugger: str | None, path: Key) -> str:
    """Opaque, and the same wherever a value is in the same place."""
    return f"{section[0]}{_mark(debugger or '')}{_mark(*path)}"


def is_of(id: str, section: str, debugger: str | None = None) -> bool:
    """Whether an item of that id can be in a section, or in the value of a debugger."""
    head = f"{section[0]}{_mark(debugger)}" if debugger is not None else section[0]
    return id.startswith(head)


def _mark(*keys: str) -> str:
    hashed = hashlib.blake2b(digest_size=6)
    for key in keys:
        hashed.update(f"{len(key)}:".encode() + key.encode(errors="replace"))
    return hashed.hexdigest()


# ---------------------------------------------------------------- walking
def walk(section: str, value: Any, debugger: str | None = None) -> Iterator[Item]:
    """The items of a section's value, or of one debugger's, in their order.

    >>> [(item.name, type(item.value).__name__) for item in walk("debugger", {"map": torch.zeros(2), "n": 3}, "seen")]
    [('map', 'Tensor'), ('n', 'int')]
    """
    walker = _Walk(section, debugger, tokens_of(value))
    for count, item in enumerate(walker.items(value, (), "")):
        if count == MOST_ITEMS:
            yield walker.note((), f"Only the first {MOST_ITEMS} items are shown. The snippet loads all.")
            return
        yield item


class _Walk:
    def __init__(self, section: str, debugger: str | None, tokens: tuple[str, ...] | None) -> None:
        self._section = section
        self._debugger = debugger
        self._tokens = tokens
        self._members = 0

    def note(self, path: Key, text: str) -> Item:
        return Item(self._section, self._debugger, (*path, "not shown"), text, is_note=True)

    def _item(self, path: Key, lookup: str, value: Any, *, group: bool = False) -> Item:
        return Item(self._section, self._debugger, path, value, lookup, self._tokens, group=group)

    def _has_renderer(self, path: Key) -> bool:
        return registered(self._debugger, "/".join(path)) is not None

    def items(self, value: Any, path: Key, lookup: str) -> Iterator[Item]:
        if self._has_renderer(path) or not _is_opened(value):
            yield self._item(path, lookup, value)
        elif len(path) == MOST_DEPTH:
            yield self.note(path, f"Deeper than {MOST_DEPTH} levels. The snippet loads all of it.")
        else:
            yield from self._members_of(value, path, lookup)

    def _members_of(self, value: Any, path: Key, lookup: str) -> Iterator[Item]:
        scalars, others = self._split(value, path)
        for key, step, inner in others:
            yield from self.items(inner, (*path, key), lookup + step)
        if len(scalars) == 1:
            ((key, (step, inner)),) = scalars.items()
            yield self._item((*path, key), lookup + step, inner)
        elif scalars:
            # The container itself when it holds nothing else: its own size is shown then.
            rows = {key: inner for key, (_, inner) in scalars.items()}
            yield self._item(path, lookup, rows if others else value, group=bool(others))
        if self._members > _MOST_MEMBERS and (others or not scalars):
            text = f"Only the first {_MOST_MEMBERS:,} members were looked at; this container has {keys_of(value):,}."
            yield self.note(path, text)

    def _split(self, value: Any, path: Key) -> tuple[dict[str, tuple[str, Any]], list[tuple[str, str, Any]]]:
        """The members that are rows of one table, and those that are items of their own, with their lookups."""
        scalars: dict[str, tuple[str, Any]] = {}
        others: list[tuple[str, str, Any]] = []
        for key, step, inner in _entries(value):
            self._members += 1
            if self._members > _MOST_MEMBERS:
                break
            if _is_short(inner) and not self._has_renderer((*path, key)):
                scalars[key] = step, inner
            elif len(others) <= MOST_ITEMS:
                others.append((key, step, inner))
        return scalars, others


def _entries(value: Any) -> Iterator[tuple[str, str, Any]]:
    """The members of a container: the key as text, Python that looks it up (empty if there is none), the value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            plain = key is None or type(key) in (str, int, bool)
            yield key_text(key), f"[{key!r}]" if plain and len(str(key)) <= CELL else "", inner
        return
    by_position = isinstance(value, (list, tuple))
    for k, (key, inner) in enumerate(members(value) or ()):
        yield key, f"[{k}]" if by_position else "" if isinstance(value, (set, frozenset)) else f"[{key!r}]", inner


def _is_opened(value: Any) -> bool:
    """Whether a value is walked into."""
    if is_numbers(value) or members(value) is None or not keys_of(value):
        return False
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return not all(is_scalar(v) for v in value) if len(value) <= 1000 else not is_scalar(next(iter(value)))
    return True


def _is_short(value: Any) -> bool:
    """Whether a value is a row of a table."""
    if isinstance(value, (list, tuple)):
        return len(value) <= SHORT_LIST and all(is_scalar(v) and _is_short(v) for v in value)
    if isinstance(value, str):
        return len(value) <= CELL and "\n" not in value
    return is_scalar(value) and not isinstance(value, bytes)


# ---------------------------------------------------------------- what a classification means
def label_of(labels: Any) -> int | None:
    """The index of a datapoint's class; None if its labels are something else."""
    if not isinstance(labels, dict):
        return _index(labels)
    indices = {key: index for key, value in labels.items() if (index := _index(value)) is not None}
    return _named_or_only(indices, _LABEL_KEYS)


def _index(value: Any) -> int | None:
    """A single integer, as such, of numpy, or in a tensor."""
    if type(value) is int:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if is_numbers(value):
        x = Numbers(value)
        if x.size == 1 and x.is_integral and x.dtype != "bool":
            return int(x.reshaped(-1).take()[0])
    return None


def scores_of_classes(outputs: Any) -> Any:
    """The tensor in a model's outputs that may hold one number per class; None if there is none, or more than one."""
    if not isinstance(outputs, dict) and not hasattr(outputs, "_fields"):
        return outputs if _is_row(outputs) else None
    rows = {key: value for key, value in members(outputs) or () if _is_row(value)}
    return _named_or_only(rows, _OUTPUT_KEYS)


def _named_or_only(values: dict[str, T], names: Sequence[str]) -> T | None:
    """The value with the first of these names that exists, or else the only value."""
    named = [values[name] for name in names if name in values]
    return next(iter(named or values.values())) if named or len(values) == 1 else None


def _is_row(value: Any) -> bool:
    if not is_numbers(value):
        return False
    shape = tuple(value.shape)
    row = shape[1:] if len(shape) == 2 and shape[0] == 1 else shape
    return len(row) == 1 and 2 <= row[0] <= _MOST_CLASSES and not Numbers(value).is_integral


def is_classification(row: Any, labels: Any, class_names: Any) -> bool:
    """Whether a row of outputs holds one number per class: as many as class names, and one class as the label.

    Without names the label decides alone. Labels of several classes at once do not count: their outputs do not
    compete, and a softmax of them would mean nothing.
    """
    if row is None:
        return False
    n = max(row.shape)
    label = label_of(labels) if labels is not None else None
    if class_names is not None:
        return n == len(class_names) and (labels is None or label is not None)
    return label is not None and 0 <= label < n


@dataclass(frozen=True, slots=True)
class Prediction:
    """The class with the highest output."""

    index: int
    probability: float
    how: str
    """How the probability was computed."""


def prediction_of(row: Any) -> Prediction | None:
    """The prediction of a classification; None if an output is not finite."""
    outputs = Numbers(row).reshaped(-1).take().astype(np.float64)
    shares, how = probabilities(outputs)
    if shares is None:
        return None
    best = int(shares.argmax())
    return Prediction(best, float(shares[best]), how)


def class_maps(outputs: Any, labels: Any, class_names: Any) -> Iterator[tuple[Key, str, Any]]:
    """For outputs with one map per class: their path, Python that computes the class at each pixel, and the result.

    Outputs have one map per class if they have as many channels as there are class names, or, without names, the size
    of the label mask.
    """
    sizes = {tuple(item.value.shape[-2:]) for item in walk("labels", labels) if _is_mask(item.value)}
    for item in walk("outputs", outputs):
        x = numbers_of(item.value)
        if x is None or not _has_channels(x):
            continue
        at = len(x.shape) - 3
        channels, *size = x.shape[at:]
        if channels == len(class_names) if class_names is not None else tuple(size) in sizes:
            yield item.path, f"{item.lookup}.argmax({at})", x.take().argmax(at)


def _has_channels(x: Numbers) -> bool:
    """Whether it is one datapoint's maps of several channels."""
    single = len(x.shape) == 3 or (len(x.shape) == 4 and x.shape[0] == 1)
    return single and not x.is_integral and x.shape[-3] > 1 and min(x.shape[-2:]) >= 4


def _is_mask(value: Any) -> bool:
    x = numbers_of(value)
    return x is not None and x.is_integral and len(x.shape) in (2, 3, 4) and all(n == 1 for n in x.shape[:-2])


def tokens_of(*sections: Any) -> tuple[str, ...] | None:
    """The texts of the tokens, where inputs or meta_info hold them."""
    for section in sections:
        for key in _TOKEN_KEYS if isinstance(section, dict) else ():
            tokens = section.get(key)
            if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], (list, tuple)):
                tokens = tokens[0]  # a batch of one
            if _are_texts(tokens):
                return tuple(shortened(token, 100) for token in tokens[:4096])
    return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(one, str) for one in value)
