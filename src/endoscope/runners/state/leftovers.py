"""Earlier results in a work folder: which of them a run removes, and which conflict with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from endoscope.pages.folders import page_files, remove_pages
from endoscope.runs import layout


def remove_results(folder: Path, split: layout.Split) -> None:
    """Remove captures, outputs, scores and training losses from ``folder``, unless it is a link."""
    if folder.is_symlink():
        return
    for name in (layout.DEBUGGER, layout.OUTPUTS):
        remove_pages(folder / name)
    for name in _files(split):
        (folder / name).unlink(missing_ok=True)


def conflict(folders: Iterable[Path], split: layout.Split, pages: Sequence[Path], *, ours: bool) -> str:
    """Why a run must not write its results into these folders, or cannot, as a sentence; empty if it can.

    A link is refused, because it may lead to another run. pages: page folders in addition to those in ``folders``.
    ours: whether the results there come from an earlier attempt at this run, and may be replaced.
    """
    folders = list(folders)
    page_folders = [*pages, *(f / name for f in folders for name in (layout.DEBUGGER, layout.OUTPUTS))]
    files = [f / name for f in folders for name in _files(split)]
    for path in (*folders, *page_folders, *files):
        if reason := _wrong_kind(path, is_file=path in files):
            return f"{str(path)!r} is {reason}"
    results = [*chain.from_iterable(map(page_files, page_folders)), *filter(Path.exists, files)]
    if results and not ours:
        return f"{str(results[0])!r} was not made by a run, and this run would replace it"
    return ""


def _wrong_kind(path: Path, *, is_file: bool) -> str:
    if path.is_symlink():
        return "a link"
    if path.exists() and path.is_dir() == is_file:
        return "a folder" if is_file else "not a folder"
    return ""


def _files(split: layout.Split) -> list[str]:
    return [layout.scores_file(split), *([layout.TRAINING_LOSSES] if split == "validation" else [])]
