"""Nested values: walking and sizing them, batch markers, and stand-ins for foreign types.

A debugger marks a value with `per_datapoint` or `whole_batch`. A reader returns stand-ins for types that Endoscope will
not import: nothing opened is executed, so a dataclass is read back as its name and fields.
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
    """One value per datapoint of the batch, in the order of the batch; see `per_datapoint`."""


@dataclasses.dataclass(frozen=True, slots=True)
class WholeBatch:
    """A value that belongs to the complete batch, whatever its first dimension; see `whole_batch`."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Stand-in for the statistics of a tensor in the same dict. They are computed when they are read, not in the loop.

    >>> with_summaries({"feature_map": torch.ones(1, 2), "stats": Summary(of="feature_map")})["stats"]["mean"]
    1.0
    """

    of: str


def per_datapoint(values: Sequence[Any]) -> Any:
    """Mark ``values`` as one per datapoint of the batch: the reader gives the j-th to the j-th datapoint.

    >>> per_datapoint([0.1, 0.7])       # a batch of two: two means
    [0.1, 0.7]
    >>> per_datapoint([0.1])            # a batch of one needs no mark
    0.1
    """
    return values[0] if len(values) == 1 else PerDatapoint(values)


def whole_batch(value: Any) -> WholeBatch:
    """Mark ``value`` as belonging to the complete batch: the reader gives all of it to every datapoint.

    >>> whole_batch([1, 2]).value
    [1, 2]
    """
    return WholeBatch(value)


def type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class DataclassValue:
    """A dataclass (or Hugging Face ``ModelOutput``) as it is read back: the name of its type, and its fields.

    Fields are read as attributes or by key. It equals the original if type and fields do.
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
    """A namedtuple as it is read back: a tuple that equals the original, with fields that can be read by name."""

    _type: str
    _fields: tuple[str, ...]

    def __new__(cls, type: str, fields: Sequence[str], values: Sequence[Any]) -> NamedTupleValue:
        self = super().__new__(cls, values)
        self.__dict__.update(_type=type, _fields=tuple(fields))
        return self

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):  # a field hides a method of tuple, as in the original
            fields = self._fields
            if name in fields:
                return self[fields.index(name)]
        return super().__getattribute__(name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return NamedTupleValue, (self._type, self._fields, tuple(self))


@dataclasses.dataclass(frozen=True, eq=False)
class EnumValue:
    """An enum member as it is read back; equal to the original member."""

    type: str
    name: str | None
    """None for a combination of flags without a name."""
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
    """An object of a type that cannot be stored: the name of its type and the start of its ``repr``."""

    type: str
    text: str


OPAQUE_TEXT = 1000  # characters of a repr that are stored


def opaque(value: Any) -> Opaque:
    try:
        text = repr(value)
    except Exception as e:  # noqa: BLE001  # a user's broken __repr__ must not lose the record
        text = f"<repr failed: {type(e).__name__}>"
    return Opaque(type_name(type(value)), text if len(text) <= OPAQUE_TEXT else text[: OPAQUE_TEXT - 1] + "…")


MAX_DEPTH = 64
"""How deep a value may be nested; a deeper one is most likely cyclic."""

ATOMS = (str, bytes, int, float, complex, bool, type(None), pathlib.PurePath, Opaque, EnumValue,
         datetime.date, datetime.time, datetime.timedelta, np.generic)  # fmt: skip
_PLAIN = frozenset((int, float, bool, type(None), Summary, str, bytes))
"""Types whose values cannot change and are kept as they are."""


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


# ---------------------------------------------------------------- walking
@dataclasses.dataclass(slots=True)
class Parts:
    """What a container holds: ``hashed`` are a dict's keys or a set's items, ``values`` all else. ``rebuild`` makes a
    container of the same kind from new ones."""

    hashed: Sequence[Any]
    values: Sequence[Any]
    rebuild: Callable[[list[Any], list[Any]], Any]


def parts_of(value: Any) -> Parts | None:
    """The parts of a container; None for anything else."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return None
    if kind is dict:  # what most debuggers return
        return Parts(list(value), list(value.values()), _dict)
    if kind is WholeBatch:
        return Parts((), [value.value], lambda _, values: WholeBatch(values[0]))
    if kind is DataclassValue or _is_dataclass(value):  # before mappings: a ModelOutput is both
        return _parts_of_dataclass(value)
    if isinstance(value, Mapping):
        return Parts(list(value.keys()), list(value.values()), _dict)
    if isinstance(value, (list, tuple)):
        return Parts((), value, _sequence_like(value))
    if isinstance(value, (set, frozenset)):
        return Parts(list(value), (), lambda items, _: set(items) if isinstance(value, set) else frozenset(items))
    return None


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Opaque, EnumValue))


def _parts_of_dataclass(value: Any) -> Parts:
    if type(value) is DataclassValue:
        name, fields = value._type, value._fields
    else:
        name, fields = type_name(type(value)), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}

    def rebuild(_: list[Any], values: list[Any]) -> DataclassValue:
        return DataclassValue(name, dict(zip(fields, values, strict=True)))

    return Parts((), list(fields.values()), rebuild)


def _dict(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    rebuilt = dict(zip(keys, values, strict=True))
    if len(rebuilt) < len(keys):
        raise ValueError("a dict has keys that cannot be told apart once they are stored; use text or numbers")
    return rebuilt


def _sequence_like(value: Any) -> Callable[[list[Any], list[Any]], Any]:
    kind = type(value)
    if kind is PerDatapoint:
        return lambda _, values: PerDatapoint(values)
    if isinstance(value, list):
        return lambda _, values: values
    if is_namedtuple(value):
        name = value._type if kind is NamedTupleValue else type_name(kind)
        return lambda _, values: NamedTupleValue(name, value._fields, values)
    return lambda _, values: tuple(values)


def map_value(leaf: Callable[[Any], Any], value: Any, depth: int = 0) -> Any:
    """Rebuild containers; replace everything in them that is not a container by what ``leaf`` makes of it."""
    if type(value) in _PLAIN:
        return value
    parts = parts_of(value)
    if parts is None:
        return leaf(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"value nested deeper than {MAX_DEPTH} levels; is it cyclic?")
    hashed = [k if type(k) is str else _key(leaf, k, depth + 1) for k in parts.hashed]
    return parts.rebuild(hashed, [map_value(leaf, v, depth + 1) for v in parts.values])


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
    return map_value(lambda v: func(v) if isinstance(v, torch.Tensor) else v, inputs)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor of a nested value, in order, except those in sets and in keys of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= MAX_DEPTH and (parts := parts_of(value)) is not None:
        for v in parts.values:
            yield from tensors_in(v, depth + 1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of a nested value: the main output of a layer that returns a tuple or a ``ModelOutput``."""
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

    map_value(add, value)
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
