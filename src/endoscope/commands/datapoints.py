"""One datapoint of a capture, debugger by debugger: what is damaged in one does not hide the others."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from endoscope.commands.describe import describe, plain
from endoscope.errors import DamagedRecordError, DatapointNotFoundError, closest
from endoscope.pages.reader import DebugOutputs


def datapoint_facts(outputs: DebugOutputs, idx: int, names: Sequence[str]) -> dict[str, Any]:
    """The facts of one datapoint; a debugger whose bytes are damaged has the cause in their place."""
    held, damage = read_intact(outputs, idx, names)
    notes = plain(outputs.notes(idx), lambda array, _: str(array.dtype))
    for name in names:
        if not any(means(name, n) for n in (*held, *damage)):
            raise DatapointNotFoundError(_nothing_from(name, idx, outputs.list(idx), notes))
    damaged = {name: {"type": "unknown", "damaged": str(e)} for name, e in damage.items()}
    described = {name: describe(value) for name, value in held.items()}
    return {"datapoint": idx, "debuggers": {**described, **damaged}, "notes": notes}


def read_intact(
    outputs: DebugOutputs, idx: int, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, DamagedRecordError]]:
    """What the chosen debuggers gave for a datapoint (all without ``names``), and what could not be read of it."""
    if not names:
        with contextlib.suppress(DamagedRecordError):
            return outputs[idx], {}  # at once, as reading one by one takes the line apart each time
    held: dict[str, Any] = {}
    damage: dict[str, DamagedRecordError] = {}
    for name in outputs.list(idx):
        if names and not any(means(n, name) for n in names):
            continue
        try:
            held[name] = outputs.read(idx, name)
        except DamagedRecordError as e:
            damage[name] = e
    return held, damage


def means(wanted: str, name: str) -> bool:
    """Whether ``wanted`` names a debugger: in full, or as the ``features`` of ``features/layer4``."""
    return name == wanted or name.startswith(f"{wanted}/")


def _nothing_from(name: str, idx: int, present: Sequence[str], notes: dict[str, Any]) -> str:
    for kind in ("absent", "failures"):
        if isinstance(notes.get(kind), dict) and name in notes[kind]:
            return f"datapoint {idx} has nothing from {name!r}: {notes[kind][name]}"
    there = closest(name, present) or f"; it has {', '.join(map(repr, present)) or 'nothing at all'}"
    return f"datapoint {idx} has nothing from {name!r}{there}"
