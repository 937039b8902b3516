"""Nested values: walking and sizing them, batch markers, and stand-ins for foreign types.

A debugger marks a value with `per_datapoint` or `whole_batch`. A reader hands out the stand-ins where the run held a
type that Endoscope will not import: nothing opened is executed, so a dataclass comes back as its name and fields.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch


class PerDatapoint(list[Any]):
    """One value for each datapoint of the batch, in the batch's order; made by `per_datapoint`."""


@dataclasses.dataclass(frozen=True, slots=True)
class WholeBatch:
    """A value that belongs to the whole batch, whatever its first dimension; made by `whole_batch`."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Stands for the numbers of a tensor in the same dict, which are made when they are looked at: not in the loop.

    >>> summaries_made({"feature_map": torch.ones(1, 2), "stats": Summary(of="feature_map")})["stats"]["mean"]
    1.0
    """

    of: str


def per_datapoint(values: Sequence[Any]) -> Any:
    """Mark ``values`` as one for each datapoint of the batch: the reader hands the j-th to the j-th datapoint.

    >>> per_datapoint([0.1, 0.7])       # a batch of two: two means
    [0.1, 0.7]
    >>> per_datapoint([0.1])            # a batch of one needs no mark
    0.1
    """
    return values[0] if len(values) == 1 else PerDatapoint(values)


def whole_batch(value: Any) -> WholeBatch:
    """Mark ``value`` as belonging to the whole batch: every datapoint is given all of it, unsliced.

    >>> whole_batch([1, 2]).value
    [1, 2]
    """
    return WholeBatch(value)


def type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class DataclassValue:
    """A dataclass (or Hugging Face ``ModelOutput``) as it comes back: its type's name and its fields.

    Fields are read as attributes or by key; it equals the original when type and fields do.
    """

    __slots__ = ("_fields", "_type")

    def __init__(self, type: str, fields: dict[str, Any]) -> None:
        self._type = type
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_fields")[name]
        except KeyError:
            raise AttributeError(
                f"{self._type} was stored with the fields {list(self._fields)}, not {name!r}"
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return DataclassValue, (self._type, self._fields)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DataclassValue):
            return self._type == other._type and self._fields == other._fields
        if dataclasses.is_dataclass(other) and not isinstance(other, type):
            fields = {f.name: getattr(other, f.name) for f in dataclasses.fields(other)}
            return self._type == type_name(type(other)) and self._fields == fields
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable fields, like a plain dataclass

    def __repr__(self) -> str:
        return f"{self._type}({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"


class NamedTupleValue(tuple[Any, ...]):
    """A namedtuple as it comes back: a tuple (equal to the original) whose fields can be read by name."""

    _type: str
    _fields: tuple[str, ...]

    def __new__(cls, type: str, fields: Sequence[str], values: Sequence[Any]) -> NamedTupleValue:
        made = super().__new__(cls, values)
        made.__dict__.update(_type=type, _fields=tuple(fields))
        return made

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):  # a field comes before a method of tuple, as in the original
            fields = self._fields
            if name in fields:
                return self[fields.index(name)]
        return super().__getattribute__(name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return NamedTupleValue, (self._type, self._fields, tuple(self))


@dataclasses.dataclass(frozen=True, eq=False)
class EnumValue:
    """An enum member as it comes back; equal to the member it was made from."""

    type: str
    name: str | None
    """None for a combination of flags that has no name."""
    value: Any

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EnumValue):
            return (self.type, self.name, self.value) == (other.type, other.name, other.value)
        if isinstance(other, enum.Enum):
            return (self.type, self.name, self.value) == (type_name(type(other)), other.name, other.value)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.type, self.name))


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """An object of a type that is not stored: what was kept is its type's name and the start of its ``repr``."""

    type: str
    text: str


OPAQUE_TEXT = 1000  # characters of a repr that are kept


def opaque(value: Any) -> Opaque:
    try:
        text = repr(value)
    except Exception as e:  # noqa: BLE001  # a broken __repr__ is the user's, and must not lose the record
        text = f"<repr failed: {type(e).__name__}>"
    return Opaque(type_name(type(value)), text if len(text) <= OPAQUE_TEXT else text[: OPAQUE_TEXT - 1] + "…")


MAX_DEPTH = 64
"""How deep a value may be nested; deeper ones are most likely cyclic."""

ATOMS = (str, bytes, int, float, complex, bool, type(None), pathlib.PurePath, Opaque, EnumValue,
         datetime.date, datetime.time, datetime.timedelta, np.generic)  # fmt: skip
_NUMBERS = frozenset((int, float, bool, type(None), Summary))
PLAIN = _NUMBERS | {str, bytes}
"""Types whose values cannot change and are kept as they are."""


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def map_value(leaf: Callable[[Any], Any], value: Any, depth: int) -> Any:
    """Rebuild containers, handing everything that is none to ``leaf``."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"value nested deeper than {MAX_DEPTH} levels; is it cyclic?")
    depth += 1
    if kind is dict and set(map(type, value)) <= {str}:
        return {k: map_value(leaf, v, depth) for k, v in value.items()}
    if kind is PerDatapoint:
        return PerDatapoint(map_value(leaf, v, depth) for v in value)
    if kind is WholeBatch:
        return WholeBatch(map_value(leaf, value.value, depth))
    if kind is DataclassValue:
        return DataclassValue(value._type, {k: map_value(leaf, v, depth) for k, v in value._fields.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and kind not in (Opaque, EnumValue):
        return DataclassValue(type_name(kind), {k: map_value(leaf, v, depth) for k, v in _fields(value).items()})
    if isinstance(value, (dict, Mapping)):
        made = {k if type(k) is str else _key(leaf, k, depth): map_value(leaf, v, depth) for k, v in value.items()}
        if len(made) < len(value):
            raise ValueError("a dict has keys that cannot be told apart once they are stored; use text or numbers")
        return made
    if isinstance(value, list):
        return [map_value(leaf, v, depth) for v in value]
    if is_namedtuple(value):
        inner = [map_value(leaf, v, depth) for v in value]
        if kind is NamedTupleValue:
            return NamedTupleValue(value._type, value._fields, inner)
        return NamedTupleValue(type_name(kind), value._fields, inner)
    if isinstance(value, tuple):
        return tuple(map_value(leaf, v, depth) for v in value)
    if isinstance(value, (set, frozenset)):
        kept = set if isinstance(value, set) else frozenset
        return kept(_key(leaf, v, depth) for v in value)
    return leaf(value)


def _key(leaf: Callable[[Any], Any], value: Any, depth: int) -> Any:
    """A dict's key or a set's item, which must stay hashable."""
    mapped = map_value(leaf, value, depth)
    try:
        hash(mapped)
    except TypeError:
        return opaque(value)
    return mapped


def apply_tensor_op(func: Callable[[torch.Tensor], Any], inputs: Any) -> Any:
    """Apply ``func`` to every tensor of a nested value; the rest stays as it is.

    >>> apply_tensor_op(func=lambda t: t + 1, inputs={"a": [torch.zeros(1)], "b": "text"})
    {'a': [tensor([1.])], 'b': 'text'}
    """
    return map_value(lambda v: func(v) if isinstance(v, torch.Tensor) else v, inputs, 0)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, DataclassValue):
        yield from tensors_in(value._fields, depth + 1)
    elif isinstance(value, WholeBatch):
        yield from tensors_in(value.value, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(_fields(value), depth + 1)
    elif isinstance(value, (dict, Mapping)):
        for v in value.values():
            yield from tensors_in(v, depth + 1)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_in(v, depth + 1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of a nested value: what a layer that returns a tuple or a ``ModelOutput`` mainly computed."""
    if isinstance(value, torch.Tensor):
        return value
    return next(tensors_in(value), None)


def nbytes(value: Any) -> int:
    """True bytes of the tensors and arrays in a nested value; Python's object headers do not count.

    >>> nbytes({"a": torch.zeros(3), "b": "text"})
    12
    """
    total = 0

    def add(v: Any) -> Any:
        nonlocal total
        if isinstance(v, torch.Tensor):
            total += tensor_nbytes(v)
        elif isinstance(v, np.ndarray):
            total += v.nbytes
        return v

    map_value(add, value, 0)
    return total


def tensor_nbytes(t: torch.Tensor) -> int:
    if t.layout is torch.strided:
        return t.numel() * t.element_size()
    if t.layout is torch.sparse_coo:
        return tensor_nbytes(t._indices()) + tensor_nbytes(t._values())
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sum(map(tensor_nbytes, (t.crow_indices(), t.col_indices(), t.values())))
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return sum(map(tensor_nbytes, (t.ccol_indices(), t.row_indices(), t.values())))
    return t.numel() * t.element_size()
