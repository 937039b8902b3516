"""Datapoints of one capture, debugger by debugger: what a damaged one cannot give does not hide the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from endoscope.commands.captures import Capture
from endoscope.commands.console import printable, progress
from endoscope.commands.describe import describe
from endoscope.commands.exports import open_export
from endoscope.errors import DamagedRecordError, DatapointNotFoundError, closest
from endoscope.pages.reader import DebugOutputs


def datapoint_facts(outputs: DebugOutputs, idx: int, names: Sequence[str]) -> dict[str, Any]:
    """The facts of one datapoint; a debugger whose bytes are damaged has the cause in their place."""
    notes = outputs.notes(idx)
    debuggers: dict[str, Any] = {}
    for name in chosen_names(outputs, idx, names):
        try:
            debuggers[name] = describe(outputs.read(idx, name))
        except DamagedRecordError as e:
            debuggers[name] = {"type": "unknown", "damaged": str(e)}
    return {"datapoint": idx, "debuggers": debuggers, "notes": describe_notes(notes)}


def describe_notes(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes are texts and counts by debugger already."""
    return {str(kind): held if isinstance(held, (str, int, dict)) else str(held) for kind, held in notes.items()}


def chosen_names(outputs: DebugOutputs, idx: int, names: Sequence[str]) -> list[str]:
    """The debuggers of a datapoint that ``names`` means: all without names; ``features`` also means ``features/*``."""
    present = outputs.list(idx)
    if not names:
        return present
    chosen = [p for p in present if any(p == n or p.startswith(f"{n}/") for n in names)]
    for name in names:
        if not any(c == name or c.startswith(f"{name}/") for c in chosen):
            raise DatapointNotFoundError(_absent(outputs, idx, name, present))
    return chosen


def _absent(outputs: DebugOutputs, idx: int, name: str, present: Sequence[str]) -> str:
    notes = outputs.notes(idx)
    why = notes.get("absent", {}).get(name) or notes.get("failures", {}).get(name)
    if why:
        return f"datapoint {idx} has nothing from {name!r}: {why}"
    return f"datapoint {idx} has nothing from {name!r}; it has {', '.join(present) or 'none'}{closest(name, present)}"


# ---------------------------------------------------------------- export
@dataclass(frozen=True)
class Exported:
    """What was written, and what could not be."""

    path: Path
    datapoints: int
    tensors: int
    nbytes: int
    changes: Counter[str] = field(default_factory=Counter)
    damage: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"wrote {self.path}: {self.datapoints} datapoints, {self.tensors} tensors, {decimal(self.nbytes)}"
        for change, count in self.changes.items():
            yield f"  {count} tensors {change}"


def export_datapoints(
    capture: Capture, path: Path, *, indices: Sequence[int], names: Sequence[str], overwrite: bool
) -> Exported:
    """Write the chosen datapoints (all without ``indices``) of the chosen debuggers (all without ``names``)."""
    damage: list[str] = []
    written = 0
    with capture.open() as outputs:
        chosen = list(dict.fromkeys(indices)) or list(outputs)
        found = _check_chosen(outputs, chosen, names)
        if not indices:
            damage += [printable(str(d)) for d in outputs.damage]
        about = {"capture": capture.name, **({} if capture.epoch is None else {"epoch": capture.epoch})}
        with open_export(path, about, overwrite=overwrite) as export, progress(chosen, "exporting") as going:
            for idx in going:
                try:
                    held = _read_intact(outputs, idx, names, damage)
                    export.add(idx, held, outputs.notes(idx))
                    written += 1
                except DamagedRecordError as e:
                    damage.append(printable(str(e)))
    return Exported(path, written, export.tensors, path.stat().st_size, export.changes, damage)
