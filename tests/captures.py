"""Small captures on disk: write records as a user would, read them all back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
from endoscope.pages.reader import DebugOutputs, load_debug_outputs

Idx = int | list[int]


def datapoint(idx: Idx) -> dict[str, Any]:
    return {"meta_info": {"idx": idx}}


def debugger(folder: Path | None, **settings: Any) -> SequentialDebugger:
    """One that only stores what `add_to_buffer` is given."""
    return SequentialDebugger([], torch.nn.Identity(), output_dir=folder, **settings)


def write(folder: Path, records: Iterable[tuple[Idx, Mapping[str, Any]]], **settings: Any) -> Path:
    """A closed capture of ``records``."""
    with debugger(folder, **settings) as d:
        for idx, outputs in records:
            d.add_to_buffer(outputs, datapoint(idx))
    return folder


def opened(folder: Path) -> DebugOutputs:
    outputs = load_debug_outputs(folder)
    assert isinstance(outputs, DebugOutputs)
    return outputs


def files(folder: Path, suffix: str) -> list[Path]:
    """The folder's files with that suffix, pages in their order."""
    return sorted(folder.glob(f"*.{suffix}"), key=lambda p: (len(p.name), p.name))
