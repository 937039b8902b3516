"""An export: which datapoints go into the file, and what is said about it afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from endoscope.commands.captures import Capture
from endoscope.commands.console import progress
from endoscope.commands.datapoints import means, read_intact
from endoscope.commands.export_formats import Export, open_export
from endoscope.commands.text import printable
from endoscope.errors import DamagedRecordError, DatapointNotFoundError, closest
from endoscope.pages.reader import DebugOutputs


@dataclass(frozen=True)
class Exported:
    """What was written, what was changed for it, and what is damaged and therefore not in it."""

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
    """Write the chosen datapoints (all without ``indices``) of the chosen debuggers (all without ``names``)."""
    about = {"capture": capture.name, "epoch": capture.epoch}
    with capture.open() as outputs, open_export(path, about, overwrite=overwrite) as export:
        for idx in indices:
            if idx not in outputs:
                outputs.list(idx)  # raises, and says what is there
        damage = [] if indices else [printable(str(d)) for d in outputs.seen_damage]
        written = _write(outputs, export, list(dict.fromkeys(indices)) or list(outputs), names, damage)
    return Exported(path, written, export.tensors, export.changes, damage)


def _write(outputs: DebugOutputs, export: Export, chosen: list[int], names: Sequence[str], damage: list[str]) -> int:
    """Write datapoint after datapoint; adds to ``damage``, and returns how many were written."""
    written = 0
    present: dict[str, None] = {}
    with progress(chosen, "exporting") as going:
        for idx in going:
            try:
                held, damaged = read_intact(outputs, idx, names)
                if names:
                    present |= dict.fromkeys(outputs.list(idx))
                damage += [f"{name!r} of {printable(str(e))}" for name, e in damaged.items()]
                if held or not damaged:
                    export.add(idx, held, outputs.notes(idx))
                    written += 1
            except DamagedRecordError as e:
                damage.append(printable(str(e)))
    for name in names:
        if not any(means(name, p) for p in present):
            there = closest(name, present) or f"; there are {', '.join(map(repr, present)) or 'none'}"
            raise DatapointNotFoundError(f"no datapoint has anything from {name!r}{there}")
    return written
