"""Exporting datapoints: which ones go into the file, and the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from endoscope.commands.captures import Capture
from endoscope.commands.console import progress
from endoscope.commands.datapoints import alternatives, matches, read_intact
from endoscope.commands.export_formats import Export, open_export
from endoscope.commands.text import printable
from endoscope.errors import DamagedRecordError, DatapointNotFoundError
from endoscope.pages.reader import DebugOutputs


@dataclass(frozen=True)
class Exported:
    """The exported file: conversions of tensors and how many of each, and the damage that was left out."""

    path: Path
    datapoints: int
    tensors: int
    changes: Counter[str]
    damage: list[str]

    def lines(self) -> Iterator[str]:
        size = decimal(self.path.stat().st_size)
        yield f"wrote {self.path}: datapoints {self.datapoints}, tensors {self.tensors}, {size}"
        for change, count in self.changes.items():
            yield f"  {count} of the tensors {change}"


def export_datapoints(
    capture: Capture, path: Path, *, indices: Sequence[int], names: Sequence[str], overwrite: bool
) -> Exported:
    """Write the datapoints ``indices`` (empty: all) of the debuggers ``names`` (empty: all)."""
    about = {"capture": capture.name, "epoch": capture.epoch}
    with capture.open() as outputs, open_export(path, about, overwrite=overwrite) as export:
        for idx in indices:
            if idx not in outputs:
                outputs.list(idx)  # raises an error that says which datapoints exist
        selected = list(dict.fromkeys(indices)) or list(outputs)
        damage = [] if indices else [printable(str(d)) for d in outputs.known_damage]
        existing: dict[str, None] = {}  # in order
        written = 0
        for idx in progress(selected, "exporting"):
            try:
                existing |= dict.fromkeys(outputs.list(idx) if names else ())
                written += _write(outputs, export, idx, names, damage)
            except DamagedRecordError as e:
                damage.append(printable(str(e)))
        for name in names:
            _check_name(name, existing)
    return Exported(path, written, export.tensors, export.changes, damage)


def _check_name(name: str, existing: Collection[str]) -> None:
    if not any(matches(name, other) for other in existing):
        raise DatapointNotFoundError(f"no datapoint has a value from {name!r}{alternatives(name, existing)}")


def _write(outputs: DebugOutputs, export: Export, idx: int, names: Sequence[str], damage: list[str]) -> bool:
    """Write the readable values of a datapoint, add the others to ``damage``; whether anything was written."""
    values, errors = read_intact(outputs, idx, names)
    damage += [f"{name!r} of {printable(str(e))}" for name, e in errors.items()]
    if errors and not values:
        return False
    export.add(idx, values, outputs.notes(idx))
    return True
