"""What a captured value may hold besides tensors and plain Python: batch markers, and stand-ins for foreign types.

A debugger marks a value with `per_datapoint` or `whole_batch`. A reader hands out the stand-ins where the run held a
type that Endoscope will not import: nothing opened is executed, so a dataclass comes back as its name and fields.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex


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
