"""One datapoint of a capture, debugger by debugger: damage in one debugger's value does not hide the others."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from endoscope.commands.describe import as_json, describe
from endoscope.errors import DamagedRecordError, DatapointNotFoundError, closest
from endoscope.pages.reader import DebugOutputs


def datapoint_facts(outputs: DebugOutputs, idx: int, names: Sequence[str]) -> dict[str, Any]:
    """The facts of one datapoint; for a damaged value, the cause of the damage."""
    values, damage = read_intact(outputs, idx, names)
    notes = as_json(outputs.notes(idx), lambda array, _: str(array.dtype))
    for name in names:
        if not any(matches(name, n) for n in (*values, *damage)):
            reason = _reason(name, notes) or alternatives(name, outputs.list(idx))
            raise DatapointNotFoundError(f"datapoint {idx} has nothing from {name!r}{reason}")
    damaged = {name: {"type": "unknown", "damaged": str(e)} for name, e in damage.items()}
    described = {name: describe(value) for name, value in values.items()}
    return {"datapoint": idx, "debuggers": {**described, **damaged}, "notes": notes}


def read_intact(
    outputs: DebugOutputs, idx: int, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, DamagedRecordError]]:
    """The values of a datapoint from the debuggers ``names``, or from all, and the errors of the damaged ones."""
    if not names:
        with contextlib.suppress(DamagedRecordError):
            return outputs[idx], {}  # faster: one by one, the datapoint's line is parsed for each debugger
    values: dict[str, Any] = {}
    damage: dict[str, DamagedRecordError] = {}
    for name in outputs.list(idx):
        if names and not any(matches(n, name) for n in names):
            continue
        try:
            values[name] = outputs.read(idx, name)
        except DamagedRecordError as e:
            damage[name] = e
    return values, damage


def matches(query: str, name: str) -> bool:
    """Whether ``query`` names a debugger: in full, or as the ``features`` of ``features/layer4``."""
    return name == query or name.startswith(f"{query}/")


def alternatives(name: str, existing: Collection[str]) -> str:
    """The end of a message about an unknown debugger: the nearest names, or all of them."""
    return closest(name, existing) or f"; the debuggers are {', '.join(map(repr, existing)) or 'none'}"


def _reason(name: str, notes: dict[str, Any]) -> str | None:
    """Why a debugger gave nothing, from the datapoint's notes."""
    for kind in ("absent", "failures"):
        if isinstance(notes.get(kind), dict) and name in notes[kind]:
            return f": {notes[kind][name]}"
    return None
