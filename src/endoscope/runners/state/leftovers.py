"""Leftovers: what is in a work folder before a run begins: what of it the run replaces, and what it must not touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from endoscope.pages.folders import page_files, remove_pages
from endoscope.runs import layout


def remove_results(folder: Path, split: layout.Split) -> None:
    """What a pass over a dataset leaves in ``folder``: captures, outputs, scores, and of training the losses. What is
    behind a link may belong to another run."""
    if folder.is_symlink():
        return
    for name in (layout.DEBUGGER, layout.OUTPUTS):
        remove_pages(folder / name)
    for name in _files(split):
        (folder / name).unlink(missing_ok=True)


def in_the_way(folders: Iterable[Path], split: layout.Split, pages: Sequence[Path], *, ours: bool) -> str:
    """What a run that writes into these folders would harm, or could not write, as a sentence; empty when nothing is.

    pages: page folders besides those in ``folders``.
    ours: whether an earlier attempt at the same run is there, whose results may be replaced.
    """
    pages = [*pages]
    for folder in folders:
        if folder.is_symlink() or not folder.is_dir():
            return f"{str(folder)!r} is {'a link' if folder.is_symlink() else 'no folder'}"
        pages += (folder / layout.DEBUGGER, folder / layout.OUTPUTS)
        for file in (folder / name for name in _files(split)):
            if file.is_symlink() or file.is_dir():
                return f"{str(file)!r} is {'a link' if file.is_symlink() else 'a folder'}"
            if file.exists() and not ours:
                return _unknown(file)
    for place in pages:
        if place.is_symlink():  # what is behind it may belong to another run
            return f"{str(place)!r} is a link"
        if place.exists() and not place.is_dir():
            return f"{str(place)!r} is no folder"
        if not ours and (found := page_files(place)):
            return _unknown(found[0])
    return ""


def _unknown(path: Path) -> str:
    return f"{str(path)!r} is there, which no run has made and this one would replace"


def _files(split: layout.Split) -> list[str]:
    return [layout.scores_file(split), *([layout.TRAINING_LOSSES] if split == "validation" else [])]
