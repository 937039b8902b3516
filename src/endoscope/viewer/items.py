"""Items: a datapoint's values as in docs/viewer-api.md, with addresses of pictures and Python to load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import xxhash

from endoscope.errors import EndoscopeError
from endoscope.render.curves import is_number_list
from endoscope.render.numbers import Array, Numbers, is_numbers, laid_out, statistics
from endoscope.render.plain import jsonable, type_of
from endoscope.render.registry import PICTURES, About, Problem, describe, draw
from endoscope.runs.datapoint import Datapoint
from endoscope.runs.datapoint_values import SECTIONS, Found, item_id
from endoscope.viewer.answers import Json

Address = Callable[[Found, str], str]
"""The address of an item's picture; the text changes with the picture."""

DRAWN = "1"
"""Change this when the same value is drawn differently, so that browsers request it again."""


def item(datapoint: Datapoint, found: Found, address: Address, where: str) -> Json:
    """One item. ``where`` is the folder of the run, for the snippet."""
    drawn = draw(found.value, datapoint.about(found))
    numbers = drawn.numbers
    body = {**drawn.body}
    if drawn.form in PICTURES:
        body["src"] = address(found, version(found.value, datapoint, found))
        if body.get("overlay"):
            body["overlay"] = address(found, version(found.value, datapoint, found, overlay=True)) + "&overlay=1"
    return jsonable(  # type: ignore[no-any-return]
        {
            "id": found.id,
            "name": found.name,
            "debugger": found.debugger,
            "renderer": drawn.form,
            "type": type_of(found.value),
            "shape": list(found.value.shape) if is_numbers(found.value) else None,
            "dtype": numbers.dtype if numbers is not None else None,
            "stats": _statistics(found.value, numbers),
            "body": body,
            "snippet": snippet(datapoint, found, where),
        }
    )


def _statistics(value: Any, numbers: Numbers | None) -> Json | None:
    if numbers is None and is_number_list(value):
        numbers = Numbers(np.array(value, np.float64))
    return asdict(statistics(numbers)) if numbers is not None else None


def problem(datapoint: Datapoint, section: str, debugger: str | None, message: str, where: str) -> Json:
    """An item that could not be read."""
    found = Found(section, debugger, (), None)
    body = Problem().body(message, About())
    facts = {"type": None, "shape": None, "dtype": None, "stats": None}
    head = {"id": item_id(section, debugger, ()), "name": found.name, "debugger": debugger, "renderer": "problem"}
    return jsonable({**head, **facts, "body": body, "snippet": snippet(datapoint, found, where)})  # type: ignore[no-any-return]


def version(value: Any, datapoint: Datapoint, found: Found, *, overlay: bool = False) -> str:
    """A text that changes with what is drawn."""
    hashed = xxhash.xxh3_64(DRAWN.encode())
    numbers = laid_out(value)
    hashed.update((numbers.digest() if numbers is not None else repr(jsonable(_hashable(value)))).encode())
    if overlay:
        image: Array | None = datapoint.about(found).image()
        hashed.update(image.tobytes() if image is not None else b"")
    return hashed.hexdigest()


def _hashable(value: Any) -> Any:
    """The part of a registered renderer's value that is hashed: tensors by their digests, 1,000 members at most."""
    if isinstance(value, dict):
        return {str(k): _hashable(v) for k, v in list(value.items())[:1000]}
    if isinstance(value, (list, tuple)):
        return [_hashable(v) for v in value[:1000]]
    numbers = laid_out(value)
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
            section["items"] += [item(datapoint, found, address, where) for found in datapoint.items(name, debugger)]
        except EndoscopeError as e:
            if debugger is None:
                return {**section, "problem": jsonable(shown(str(e)))}
            section["items"].append(problem(datapoint, name, debugger, shown(str(e)), where))
        except (MemoryError, RecursionError, OSError) as e:
            section["items"].append(problem(datapoint, name, debugger, shown(describe(e)), where))
    return section


def snippet(datapoint: Datapoint, found: Found, where: str) -> str:
    """Python that loads a value."""
    idx, epoch = datapoint.idx, datapoint.epoch.number
    run = f"Run({where!r})"
    if found.section == "debugger":
        pages, name = f"{run}.epoch({epoch}).debugger", found.debugger or ""
    elif found.section == "outputs":
        pages, name = f"{run}.epoch({epoch}).outputs", "outputs"
    else:
        pages, name = f"{run}.datapoints", found.section
    read = f"{pages}.read({idx}, {name!r})"
    return f"from endoscope.runs import Run\n\nvalue = {read}{found.lookup}"
