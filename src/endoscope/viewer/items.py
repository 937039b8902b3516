"""Items: a datapoint's values as in docs/viewer-api.md, with addresses of pictures and Python to load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import xxhash

from endoscope.errors import EndoscopeError
from endoscope.render.curves import is_number_list
from endoscope.render.numbers import Numbers, is_numbers, numbers_of, statistics
from endoscope.render.plain import jsonable, type_of
from endoscope.render.registry import describe, draw
from endoscope.render.renderer import PICTURES
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import SECTIONS, Item
from endoscope.viewer.answers import Json

Address = Callable[[Item, str], str]
"""The address of an item's picture; the text changes with the picture."""

DRAWN = "1"
"""Change this when the same value is drawn differently, so that browsers request it again."""


def item_json(datapoint: Datapoint, item: Item, address: Address, where: str) -> Json:
    """One item. ``where`` is the folder of the run, for the snippet."""
    drawn = draw(item.value, datapoint.about(item))
    numbers = drawn.numbers
    body = {**drawn.body}
    if drawn.form in PICTURES:
        body["src"] = address(item, version(datapoint, item))
        if body.get("overlay"):
            body["overlay"] = address(item, version(datapoint, item, overlay=True)) + "&overlay=1"
    return jsonable(  # type: ignore[no-any-return]
        {
            "id": item.id,
            "name": item.name,
            "debugger": item.debugger,
            "renderer": drawn.form,
            "type": type_of(item.value),
            "shape": list(item.value.shape) if is_numbers(item.value) else None,
            "dtype": numbers.dtype if numbers is not None else None,
            "stats": _statistics(item.value, numbers),
            "body": body,
            "snippet": snippet(datapoint, item, where),
        }
    )


def _statistics(value: Any, numbers: Numbers | None) -> Json | None:
    if numbers is None and is_number_list(value):
        numbers = Numbers(np.array(value, np.float64))
    return asdict(statistics(numbers)) if numbers is not None else None


def problem(datapoint: Datapoint, section: str, debugger: str | None, message: str, where: str) -> Json:
    """An item that could not be read."""
    item = Item(section, debugger, (), None)
    head = {"id": item.id, "name": item.name, "debugger": debugger, "renderer": "problem"}
    facts = {"type": None, "shape": None, "dtype": None, "stats": None, "body": {"message": message[:1000]}}
    return jsonable({**head, **facts, "snippet": snippet(datapoint, item, where)})  # type: ignore[no-any-return]


def version(datapoint: Datapoint, item: Item, *, overlay: bool = False) -> str:
    """A text that changes with what is drawn."""
    hashed = xxhash.xxh3_64(DRAWN.encode())
    hashed.update(repr(jsonable(_hashable(item.value))).encode())
    if overlay:
        image = datapoint.about(item).image()
        hashed.update(image.tobytes() if image is not None else b"")
    return hashed.hexdigest()


def _hashable(value: Any) -> Any:
    """The part of a registered renderer's value that is hashed: tensors by their digests, 1,000 members at most."""
    if isinstance(value, dict):
        return {str(k): _hashable(v) for k, v in list(value.items())[:1000]}
    if isinstance(value, (list, tuple)):
        return [_hashable(v) for v in value[:1000]]
    numbers = numbers_of(value)
    return numbers.digest() if numbers is not None else value


def sections(datapoint: Datapoint, address: Address, where: str, shown: Callable[[str], str]) -> list[Json]:
    """All sections with their items. ``shown`` removes this machine's paths from the text of an error."""
    return [_section(datapoint, name, address, where, shown) for name in SECTIONS]


def _section(datapoint: Datapoint, name: str, address: Address, where: str, shown: Callable[[str], str]) -> Json:
    section: Json = {"name": name, "title": SECTIONS[name], "items": [], "problem": None}
    try:
        debuggers: list[str | None] = [*datapoint.debuggers()] if name == "debugger" else [None]
    except EndoscopeError as e:
        return {**section, "problem": jsonable(shown(str(e)))}
    for debugger in debuggers:
        try:
            section["items"] += [item_json(datapoint, item, address, where) for item in datapoint.items(name, debugger)]
        except EndoscopeError as e:
            if debugger is None:
                return {**section, "problem": jsonable(shown(str(e)))}
            section["items"].append(problem(datapoint, name, debugger, shown(str(e)), where))
        except (MemoryError, RecursionError, OSError) as e:
            section["items"].append(problem(datapoint, name, debugger, shown(describe(e)), where))
    return section


def snippet(datapoint: Datapoint, item: Item, where: str) -> str:
    """Python that loads a value."""
    idx, epoch = datapoint.idx, datapoint.epoch.number
    run = f"Run({where!r})"
    if item.section == "debugger":
        pages, name = f"{run}.epoch({epoch}).debugger", item.debugger or ""
    elif item.section == "outputs":
        pages, name = f"{run}.epoch({epoch}).outputs", "outputs"
    else:
        pages, name = f"{run}.datapoints", item.section
    read = f"{pages}.read({idx}, {name!r})"
    return f"from endoscope.runs import Run\n\nvalue = {read}{item.lookup}"
