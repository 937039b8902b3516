"""A datapoint as flat items: what its sections hold, each value under an id that is the same in every epoch.

A section is walked down to tensors, tables of scalars, lists and texts. Walking is bounded: what is left out, because
there is too much of it or it is nested too deeply, is said in an item of its own. Nothing is drawn here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endoscope.render.curves import is_number_list
from endoscope.render.numbers import Numbers, is_numbers, laid_out
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
"""Items of a section's value, at most."""
MOST_DEPTH = 24
_MOST_LOOKED_AT = 20_000  # members of containers
_LABEL_KEYS = ("label", "labels", "class", "target", "class_label", "y")
_OUTPUT_KEYS = ("logits", "outputs", "output", "scores", "probabilities", "probs", "pred", "out")
_TOKEN_KEYS = ("tokens", "token_strings", "words")
_MOST_CLASSES = 100_000

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One value of a section."""

    section: str
    debugger: str | None
    path: Key
    """Keys from the section's or the debugger's value down to it."""
    value: Any
    lookup: str = ""
    """Python that looks it up in the section's or the debugger's value, as far as it can be."""
    tokens: tuple[str, ...] | None = None
    """The texts of the tokens that the same debugger gave."""
    group: bool = False
    """Whether it is the scalars of a container, rather than all of it."""
    statement: bool = False
    """Whether it is no value but says what is not shown."""

    @property
    def id(self) -> str:
        return item_id(self.section, self.debugger, (*self.path, "\0values") if self.group else self.path)

    @property
    def name(self) -> str:
        """How it is called on screen: its keys, or the name of what it is all of."""
        inside = "/".join(self.path)
        if self.group:
            inside = f"{inside}/values" if inside else "values"
        return shortened(inside or self.debugger or self.section)

    @property
    def key(self) -> str:
        """Its keys, as renderers are registered for them; empty for all that a debugger gave."""
        return "/".join(self.path)


def item_id(section: str, debugger: str | None, path: Key) -> str:
    """Opaque, and the same wherever a value has the same place."""
    return f"{section[0]}{_mark(debugger or '')}{_mark(*path)}"


def is_of(id: str, section: str, debugger: str | None = None) -> bool:
    """Whether an item of that id can be in a section, or what a debugger gave."""
    head = f"{section[0]}{_mark(debugger)}" if debugger is not None else section[0]
    return id.startswith(head)


def _mark(*keys: str) -> str:
    hashed = hashlib.blake2b(digest_size=6)
    for key in keys:
        hashed.update(f"{len(key)}:".encode() + key.encode(errors="replace"))
    return hashed.hexdigest()


# ---------------------------------------------------------------- walking
def walk(section: str, value: Any, debugger: str | None = None) -> Iterator[Found]:
    """The items of a section's value, or of what one debugger gave, in their order.

    >>> [(item.name, type(item.value).__name__) for item in walk("debugger", {"map": torch.zeros(2), "n": 3}, "seen")]
    [('map', 'Tensor'), ('n', 'int')]
    """
    yield from _Walk(section, debugger).items(value)


class _Walk:
    def __init__(self, section: str, debugger: str | None) -> None:
        self._section = section
        self._debugger = debugger
        self._looked_at = 0
        self._tokens: tuple[str, ...] | None = None

    def items(self, value: Any) -> Iterator[Found]:
        self._tokens = tokens_of(value)
        for shown, found in enumerate(self._inside(value, (), "")):
            if shown == MOST_ITEMS:
                yield self._statement(
                    (), f"The first {MOST_ITEMS} items are shown; there are more. The snippet loads all."
                )
                return
            yield found

    def _found(self, path: Key, lookup: str, value: Any, *, group: bool = False) -> Found:
        return Found(self._section, self._debugger, path, value, lookup, self._tokens, group=group)

    def _statement(self, path: Key, text: str) -> Found:
        return Found(self._section, self._debugger, (*path, "not shown"), text, statement=True)

    def _inside(self, value: Any, path: Key, lookup: str) -> Iterator[Found]:
        if registered(self._debugger, "/".join(path)) is not None or not _is_opened(value):
            yield self._found(path, lookup, value)
            return
        if len(path) == MOST_DEPTH:
            yield self._statement(path, f"It is nested deeper than {MOST_DEPTH} levels. The snippet loads all of it.")
            return
        scalars: dict[str, Any] = {}
        others: list[tuple[str, str, Any]] = []
        last = ""
        count = keys_of(value)
        for key, step, inner in _entries(value):
            self._looked_at += 1
            if self._looked_at > _MOST_LOOKED_AT:
                break
            if _is_short(inner) and registered(self._debugger, "/".join((*path, key))) is None:
                scalars[key], last = inner, step
            elif len(others) <= MOST_ITEMS:
                others.append((key, step, inner))
        for key, step, inner in others:
            yield from self._inside(inner, (*path, key), lookup + step)
        if len(scalars) == 1:
            ((key, inner),) = scalars.items()
            yield self._found((*path, key), lookup + last, inner)
        elif scalars:
            # All that the container holds when it holds nothing else, so that its own count is told.
            yield self._found(path, lookup, scalars if others else value, group=bool(others))
        if self._looked_at > _MOST_LOOKED_AT and (others or not scalars):
            yield self._statement(path, f"The first {_MOST_LOOKED_AT:,} members were looked at; here are {count:,}.")


def _entries(value: Any) -> Iterator[tuple[str, str, Any]]:
    """What a container holds: the key as text, Python that looks it up (empty where there is none), and the value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            plain = key is None or type(key) in (str, int, bool)
            yield key_text(key), f"[{key!r}]" if plain and len(str(key)) <= CELL else "", inner
        return
    place = isinstance(value, (list, tuple))
    for k, (key, inner) in enumerate(members(value) or ()):
        yield key, f"[{k}]" if place else "" if isinstance(value, (set, frozenset)) else f"[{key!r}]", inner


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


def find(id: str, section: str, value: Any, debugger: str | None = None) -> Found | None:
    """The item of that id."""
    return next((found for found in walk(section, value, debugger) if found.id == id), None)


# ---------------------------------------------------------------- what a classification says
def label_of(labels: Any) -> int | None:
    """The index of a datapoint's class; None when its labels are something else."""
    if isinstance(labels, dict):
        named = [labels[key] for key in _LABEL_KEYS if key in labels]
        first = next((found for one in named if (found := _whole(one)) is not None), None)
        whole = [found for one in labels.values() if (found := _whole(one)) is not None]
        return first if first is not None else whole[0] if len(whole) == 1 else None
    return _whole(labels)


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if is_numbers(value):
        x = Numbers(value)
        if x.size == 1 and x.whole and x.dtype != "bool":
            return int(x.reshaped(-1).take()[0])
    return None


def scores_of_classes(outputs: Any) -> Any:
    """The tensor in a model's outputs that may hold one number for each class; None when there is none, or several."""
    if isinstance(outputs, dict) or hasattr(outputs, "_fields"):
        inside = dict(members(outputs) or ())
        for key in _OUTPUT_KEYS:
            if key in inside and _is_row(inside[key]):
                return inside[key]
        rows = [one for one in inside.values() if _is_row(one)]
        return rows[0] if len(rows) == 1 else None
    return outputs if _is_row(outputs) else None


def _is_row(value: Any) -> bool:
    if not is_numbers(value):
        return False
    shape = tuple(value.shape)
    row = shape[1:] if len(shape) == 2 and shape[0] == 1 else shape
    return len(row) == 1 and 2 <= row[0] <= _MOST_CLASSES and not Numbers(value).whole


def is_classification(row: Any, labels: Any, class_names: Any) -> bool:
    """Whether a row of outputs holds one number a class: as many as there are names, and one class as the label.

    Without names the label decides alone. Labels of several classes at once are no classification in this sense: their
    outputs do not compete, and a softmax of them would say nothing.
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
    """How the probability was made."""


def prediction_of(row: Any) -> Prediction | None:
    """What a classification says; None when an output is not finite."""
    outputs = Numbers(row).reshaped(-1).take().astype(np.float64)
    shares, how = probabilities(outputs)
    if shares is None:
        return None
    best = int(shares.argmax())
    return Prediction(best, float(shares[best]), how)


def class_maps(outputs: Any, labels: Any, class_names: Any) -> Iterator[tuple[Key, str, Any]]:
    """Of outputs with a map for each class: where they are, Python that gives the class at each pixel, and that.

    A map for each class has as many channels as there are names of classes; where there are no names, it has the size
    of the label mask.
    """
    sizes = {tuple(found.value.shape[-2:]) for found in walk("labels", labels) if _is_mask(found.value)}
    for found in walk("outputs", outputs):
        x = laid_out(found.value)
        if x is None or x.whole or len(x.shape) not in (3, 4) or (len(x.shape) == 4 and x.shape[0] != 1):
            continue
        at = len(x.shape) - 3
        channels, height, width = x.shape[at:]
        fits = channels == len(class_names) if class_names is not None else (height, width) in sizes
        if channels > 1 and min(height, width) >= 4 and fits:
            yield found.path, f"{found.lookup}.argmax({at})", x.take().argmax(at)


def _is_mask(value: Any) -> bool:
    x = laid_out(value)
    return x is not None and x.whole and len(x.shape) in (2, 3, 4) and all(n == 1 for n in x.shape[:-2])


def tokens_of(*sections: Any) -> tuple[str, ...] | None:
    """The texts of the tokens, where inputs or meta_info have them."""
    for section in sections:
        if isinstance(section, dict):
            for key in _TOKEN_KEYS:
                found = section.get(key)
                if isinstance(found, list) and len(found) == 1 and isinstance(found[0], (list, tuple)):
                    found = found[0]
                if isinstance(found, (list, tuple)) and found and all(isinstance(token, str) for token in found):
                    return tuple(shortened(token, 100) for token in found[:4096])
    return None


def is_curve(value: Any) -> bool:
    """Whether a value can be compared number by number."""
    return is_numbers(value) or is_number_list(value)
