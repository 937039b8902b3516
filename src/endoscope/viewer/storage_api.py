"""The address of what a run stores on disk: /api/storage."""

from __future__ import annotations

import math
from statistics import median

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endoscope.pages.reader import DebugOutputs
from endoscope.runs import Run, layout
from endoscope.viewer.answers import Json, answer
from endoscope.viewer.footprint import File, Footprint, footprint
from endoscope.viewer.library import Library
from endoscope.viewer.selection import Selection

_MAX_DAMAGE = 200  # damaged records of one folder that are listed


def routes(library: Library) -> list[Route]:
    return [Route("/api/storage", _Storage(library).storage)]


class _Storage:
    def __init__(self, library: Library) -> None:
        self._library = library

    def storage(self, request: Request) -> Response:
        """Every folder of pages, and the other files; the damage found so far, without reading everything."""
        run = Selection.of(request.query_params, self._library).run
        present = footprint(run.path)
        folders = []
        for name in _page_folders(run, present):
            files = {path: file for path, file in present.files.items() if path.startswith(f"{name}/")}
            folders.append(self._folder(run, name, files))
        in_pages = tuple(f"{folder['name']}/" for folder in folders)
        others = {name: file for name, file in sorted(present.files.items()) if not name.startswith(in_pages)}
        problems = [self._library.shown(problem) for problem in run.problems]
        if not present.complete:
            problems.append("there are too many files; the sizes cover only those examined first")
        files_json = [{"name": name, "bytes": file.bytes} for name, file in others.items()]
        sizes = {"folders": folders, "files": files_json, "bytes": present.bytes}
        return answer({**sizes, "cost": _cost(run, present), "problems": problems})

    def _folder(self, run: Run, name: str, files: dict[str, File]) -> Json:
        outputs = _opened(run, name)
        damage = outputs.damage if outputs is not None else []
        return {
            "name": name,
            "pages": _pages(outputs, name, files) if outputs is not None else [],
            "bytes": sum(file.bytes for file in files.values()),
            "damage": [
                {"file": one.file, "record": one.record, "reason": self._library.shown(one.cause)}
                for one in damage[:_MAX_DAMAGE]
            ],
            "damaged": len(damage),
        }


def _cost(run: Run, present: Footprint) -> Json | None:
    """The median duration of validations that stored outputs or debug outputs, and of the others, if known."""
    captured: list[float] = []
    others: list[float] = []
    for epoch in run.progress.epochs:
        if epoch.val_s is not None and math.isfinite(epoch.val_s):
            within = layout.epoch_folder(epoch.epoch)
            is_captured = any(f"{within}/{pages}" in present.folders for pages in (layout.OUTPUTS, layout.DEBUGGER))
            (captured if is_captured else others).append(epoch.val_s)
    return {"captured": _durations(captured), "others": _durations(others)} if captured else None


def _durations(seconds: list[float]) -> Json | None:
    return {"epochs": len(seconds), "median_s": median(seconds)} if seconds else None


def _page_folders(run: Run, present: Footprint) -> list[str]:
    """In the order in which they were written."""
    names = [layout.DATAPOINTS, layout.OUTPUTS, layout.DEBUGGER]
    for epoch in run.epochs:
        if epoch.number is not None:
            within = layout.epoch_folder(epoch.number)
            names += [f"{within}/{layout.OUTPUTS}", f"{within}/{layout.DEBUGGER}"]
    return [name for name in names if name in present.folders]


def _opened(run: Run, name: str) -> DebugOutputs | None:
    if name == layout.DATAPOINTS:
        return run.datapoints
    folder, _, last = name.rpartition("/")
    epoch = run.epoch(layout.epoch_of(folder))
    if epoch is None:
        return None
    return epoch.outputs if last == layout.OUTPUTS else epoch.debugger


def _pages(outputs: DebugOutputs, name: str, files: dict[str, File]) -> list[Json]:
    pages = []
    for page, (records, datapoints) in zip(outputs.pages, outputs.page_counts(), strict=True):
        own = [files.get(f"{name}/{page.name}.{suffix}") for suffix in ("safetensors", "jsonl")]
        size = sum(file.bytes for file in own if file is not None)
        counts = {"records": records, "datapoints": datapoints, "bytes": size}
        pages.append({"name": page.name, **counts, "closed": page.closed, "dropped": page.dropped})
    return pages
