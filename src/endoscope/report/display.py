"""display_debug_outputs: what the debuggers saw of one datapoint, in a notebook, without a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endoscope.errors import EndoscopeError
from endoscope.pages.reader import DebugOutputs, load_debug_outputs
from endoscope.render.plain import cell
from endoscope.render.registry import About, describe
from endoscope.report import html
from endoscope.report.shown import shown
from endoscope.runs import Epoch, Run, layout
from endoscope.runs.datapoint import MOST_BYTES, Datapoint
from endoscope.runs.datapoint_values import Found, walk

__all__ = ["Displayed", "display_debug_outputs", "load_debug_outputs"]

MOST_PICTURES = 100


class Displayed:
    """A datapoint's debug outputs as HTML; a notebook shows it when it is the last value of a cell."""

    def __init__(self, title: str, parts: list[str]) -> None:
        self._html = f'<div style="{html.STYLE[0]}">{html.heading(title, 3)}{"".join(parts)}</div>'

    def _repr_html_(self) -> str:
        return self._html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that opens from disk."""
        head = '<!doctype html><meta charset="utf-8"><title>Endoscope</title>'
        Path(path).write_text(head + self._html, encoding="utf-8", errors="replace")


def display_debug_outputs(epoch_dir: str | os.PathLike[str], idx: int) -> Displayed:
    """What the debuggers saw of datapoint ``idx``, drawn; ``epoch_dir`` is as `load_debug_outputs` takes it.

    >>> display_debug_outputs("runs/digits/epoch_4", 17)

    Pictures are inside the HTML, so that a saved notebook keeps them. A value that cannot be read or drawn says so in
    its place. Renderers registered with `endoscope.render.register` are used.
    """
    outputs = load_debug_outputs(epoch_dir)
    datapoint = _datapoint(Path(epoch_dir), idx)
    names = outputs.list(idx) if isinstance(outputs, DebugOutputs) else [*outputs[idx]]
    parts: list[str] = []
    pictures = 0
    for name in names:
        parts.append(html.heading(name))
        try:
            for found in walk("debugger", _read(outputs, idx, name), name):
                made, drew = _item(found, datapoint, draw_picture=pictures < MOST_PICTURES)
                parts.append(made)
                pictures += drew
        except (EndoscopeError, MemoryError) as e:
            parts.append(html.body("problem", {"message": str(e) or describe(e)}))
    notes = outputs.notes(idx) if isinstance(outputs, DebugOutputs) else {}
    rows = [[cell(kind), cell(of), cell(why)] for kind, each in notes.items() for of, why in list(each.items())[:100]]
    if rows:
        parts += [html.heading("notes"), html.table(["kind", "debugger", "note"], rows)]
    return Displayed(f"Datapoint {idx}", parts or ["<em>no debugger gave anything</em>"])


def _read(outputs: Mapping[int, dict[str, Any]], idx: int, name: str) -> Any:
    if not isinstance(outputs, DebugOutputs):
        return outputs[idx][name]
    size = outputs.size(idx, name)
    if size > MOST_BYTES:
        raise MemoryError(f"{size >> 20:,} MB of tensors; at most {MOST_BYTES >> 20} MB are displayed")
    return outputs.read(idx, name)


def _datapoint(folder: Path, idx: int) -> Datapoint | None:
    """The datapoint as its run has it, for class names and for what a map is laid over; None outside of a run."""
    folder = folder.resolve()
    folder = folder.parent if folder.name == layout.DEBUGGER else folder
    number = layout.epoch_of(folder.name)
    root = folder if number is None else folder.parent
    if not (root / layout.RUN).is_file():
        return None
    run = Run(root)
    epoch = run.epoch(number)
    return Datapoint(run, epoch if epoch is not None else Epoch(run, number), idx)


def _item(found: Found, datapoint: Datapoint | None, *, draw_picture: bool) -> tuple[str, int]:
    """An item as HTML, and how many pictures are in it."""
    about = datapoint.about(found) if datapoint is not None else _about(found)
    left_out = None if draw_picture else f"not drawn: {MOST_PICTURES} pictures are shown at once"
    one = shown(found, about, no_picture=left_out)
    said = [*one.said, str(one.body["note"])] if one.body.get("note") else one.said
    return f'<div style="margin:6px 0">{html.facts(said)}{html.item(one)}</div>', len(one.pictures)


def _about(found: Found) -> About:
    return About(name=found.key, section="debugger", debugger=found.debugger, tokens=found.tokens)
