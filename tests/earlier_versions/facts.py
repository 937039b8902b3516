"""What Endoscope shows of a folder of runs: every number, text and pixel that must be the same in later versions."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.viewer.api import Viewer

from endoscope.cli import main

CHANGING = {"id", "run", "src", "overlay", "size", "version", "last_write", "updated", "started", "path", "snippet"}
CHANGING |= {"note", "how", "status_text"}
"""What depends on the folder's place and age, and wording."""


def facts_of(folder: Path) -> dict[str, Any]:
    """By name of the run: what the viewer's addresses and `endoscope pages` say of it."""
    viewer = Viewer(folder)
    facts: dict[str, Any] = {}
    for run in viewer.get("runs", run=viewer.ids)["runs"]:
        facts[run["name"]] = {
            "run": _stable(run),
            "pages": _pages(folder / run["name"]),
            "epochs": {str(epoch["epoch"]): _epoch(viewer, run["id"], epoch["epoch"]) for epoch in run["epochs"]},
            "curves": _stable(viewer.get("curves", run=run["id"])),
        }
    return facts


def _epoch(viewer: Viewer, run: str, epoch: Any) -> dict[str, Any]:
    captured = viewer.get("captured", run=run, epoch=epoch)["indices"]
    return {
        "map": _stable({**viewer.get("map", run=run, epoch=epoch), "runs": None}),  # they are ids
        "datapoints": {str(dp): _datapoint(viewer, run, epoch, dp) for dp in captured[:3]},
    }


def _datapoint(viewer: Viewer, run: str, epoch: Any, dp: int) -> dict[str, Any]:
    answer = viewer.get("datapoint", run=run, epoch=epoch, dp=dp)
    pictures = {
        f"{section['name']}/{item['debugger'] or ''}/{item['name']}": _pixels(viewer, item["body"]["src"])
        for section in answer["sections"]
        for item in section["items"]
        if "src" in item["body"]
    }
    return {"shown": _stable(answer), "pictures": pictures}


def _pixels(viewer: Viewer, src: str) -> str:
    pixels = viewer.pixels(src)
    return f"{pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()[:16]}"


def _pages(folder: Path) -> dict[str, Any]:
    listed = _command("list", folder)
    shown = {}
    for capture in listed["captures"]:
        epoch = ["--epoch", str(capture["epoch"])] if capture["epoch"] is not None else []
        shown[capture["capture"]] = {idx: _stable(_command("show", folder, idx, *epoch)) for idx in ("0", "5")}
    return shown


def _command(name: str, folder: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(main, ["pages", name, str(folder), *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _stable(value: Any) -> Any:
    """As JSON has it, without what depends on where and when the run is opened."""
    if isinstance(value, dict):
        return {str(k): _stable(v) for k, v in value.items() if k not in CHANGING}
    if isinstance(value, (list, tuple)):
        return [_stable(v) for v in value]
    return value
