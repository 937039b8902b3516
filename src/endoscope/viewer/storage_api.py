"""The address about what a run keeps on disk: /api/storage."""

from __future__ import annotations

import math
from functools import partial
from statistics import median
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.pages.reader import DebugOutputs
from endoscope.runs import Run, layout
from endoscope.viewer.answers import answer
from endoscope.viewer.cache import Cache
from endoscope.viewer.footprint import File, Footprint, footprint
from endoscope.viewer.library import Library, Selection

_MOST_DAMAGE = 200  # records of one folder that are told one by one


def routes(library: Library) -> list[Route]:
    return [Route("/api/storage", _Storage(library).storage)]


class _Storage:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._folders: Cache[dict[str, Any]] = Cache(20_000, lambda folder: 1 + len(folder["pages"]))

    def storage(self, request: Request) -> Response:
        """Every folder of pages, and the other files; what is damaged as far as was seen without reading all of it."""
        selection = Selection.of(request.query_params, self._library)
        entry, run = selection.entry, selection.run
        there = footprint(entry.path)
        folders = []
        for name in _page_folders(run, there):
            files = {path: file for path, file in there.files.items() if path.startswith(f"{name}/")}
            state = (run.damage_seen(name), *sorted(files.items()))
            folders.append(self._folders.get((entry.id, name), state, partial(self._folder, run, name, files)))
        pages = {name for folder in folders for name in there.files if name.startswith(f"{folder['name']}/")}
        others = [
            {"name": name, "bytes": file.bytes} for name, file in sorted(there.files.items()) if name not in pages
        ]
        problems = [self._library.shown(problem) for problem in run.problems]
        if not there.complete:
            problems.append("there are more files than are looked at; the sizes are those of the first ones")
        told = {"folders": folders, "files": others, "bytes": there.bytes, "cost": _cost(run, there)}
        return answer({**told, "problems": problems})

    def _folder(self, run: Run, name: str, files: dict[str, File]) -> dict[str, Any]:
        outputs = _opened(run, name)
        pages = _pages(outputs, name, files) if outputs is not None else []
        found = outputs.damage if outputs is not None else []
        damage = [
            {"file": one.file, "record": one.record, "reason": self._library.shown(one.cause)}
            for one in found[:_MOST_DAMAGE]
        ]
        return {
            "name": name,
            "pages": pages,
            "bytes": sum(file.bytes for file in files.values()),
            "damage": damage,
            "damaged": len(found),
        }


def _cost(run: Run, there: Footprint) -> dict[str, Any] | None:
    """How long a validation took, in the median, where outputs or debug outputs were kept and elsewhere, if known."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for epoch in run.progress.epochs:
        if epoch.val_s is not None and math.isfinite(epoch.val_s):
            within = layout.epoch_folder(epoch.epoch)
            kept = any(f"{within}/{pages}" in there.folders for pages in (layout.OUTPUTS, layout.DEBUGGER))
            took[kept].append(epoch.val_s)
    if not took[True]:
        return None
    told = {True: "captured", False: "others"}
    return {told[k]: {"epochs": len(s), "median_s": median(s)} if s else None for k, s in took.items()}


def _page_folders(run: Run, there: Footprint) -> list[str]:
    """In the order in which they were written."""
    named = [layout.DATAPOINTS, layout.OUTPUTS, layout.DEBUGGER]
    for epoch in run.epochs:
        if epoch.number is not None:
            within = layout.epoch_folder(epoch.number)
            named += [f"{within}/{layout.OUTPUTS}", f"{within}/{layout.DEBUGGER}"]
    return [name for name in named if name in there.folders]


def _opened(run: Run, name: str) -> DebugOutputs | None:
    if name == layout.DATAPOINTS:
        return run.datapoints
    folder, _, last = name.rpartition("/")
    epoch = run.epoch(layout.epoch_of(folder))
    if epoch is None:
        return None
    return epoch.outputs if last == layout.OUTPUTS else epoch.debugger


def _pages(outputs: DebugOutputs, name: str, files: dict[str, File]) -> list[dict[str, Any]]:
    told = []
    for page, (records, datapoints) in zip(outputs.pages, outputs.page_counts(), strict=True):
        own = [files.get(f"{name}/{page.name}.{suffix}") for suffix in ("safetensors", "jsonl")]
        told.append(
            {
                "name": page.name,
                "records": records,
                "datapoints": datapoints,
                "bytes": sum(file.bytes for file in own if file is not None),
                "closed": page.closed,
                "dropped": page.dropped,
            }
        )
    return told
