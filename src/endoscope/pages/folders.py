"""Folders of pages: which files belong to pages, a folder made ready for new ones, pages moved to another."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from endoscope.errors import ConfigError, FolderInUseError
from endoscope.pages import page


def page_files(folder: Path) -> list[Path]:
    """Every file in ``folder`` that belongs to pages, of any rank and format."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(p for p in folder.iterdir() if page.parse_name(p.name) is not None)
    return []


def _ours(path: Path, rank: int | None, world_size: int) -> bool:
    """Whether this process answers for a file: its own rank's; rank 0 also for those of ranks that are no more."""
    parsed = page.parse_name(path.name)
    assert parsed is not None
    of = parsed[1]
    return of == rank or (rank in (None, 0) and (of is None or rank is None or of >= world_size))


def make_folder(folder: Path, key: str) -> None:
    """Have a folder that can be written into; an error names the argument or config key that it was given as."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"{key}: cannot make the folder {str(folder)!r}: {e.strerror}; choose another") from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: cannot write into {str(folder)!r}; choose another")


def prepare_folder(folder: Path, *, rank: int | None, world_size: int = 1, overwrite: bool = False) -> None:
    """Make ``folder`` ready for new pages: it exists, can be written, and holds no pages of an earlier capture."""
    for p in check_folder(folder, rank=rank, world_size=world_size, overwrite=overwrite):
        p.unlink()


def remove_pages(folder: Path) -> None:
    """Those of every rank; the folder goes with them unless something else is in it. No link is followed."""
    if folder.is_symlink():
        return
    for p in sorted(page_files(folder), key=_catalogues_first):
        p.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_folder(folder: Path, *, rank: int | None, world_size: int, overwrite: bool) -> list[Path]:
    """Make ``folder`` if need be; returns the pages of an earlier capture, which are refused unless ``overwrite``."""
    make_folder(folder, "output_dir")
    old = [p for p in page_files(folder) if _ours(p, rank, world_size)]
    if old and not overwrite:
        raise FolderInUseError(
            f"{str(folder)!r} already holds pages ({old[0].name}, ...); "
            "choose another folder, or pass overwrite=True to replace them"
        )
    return sorted(old, key=_catalogues_first)


def _catalogues_first(path: Path) -> bool:
    return not path.name.startswith("catalogue")


def replace_pages(source: Path, target: Path, old: list[Path], *, rank: int | None) -> None:
    """Move pages into ``target`` in place of ``old``, which come back when that fails."""
    if not old:
        move_pages(source, target, rank=rank)
        return
    aside = Path(tempfile.mkdtemp(prefix=".replaced_", dir=target))
    try:
        for p in old:
            p.rename(aside / p.name)
        move_pages(source, target, rank=rank)
    except OSError:
        for p in reversed(old):
            with contextlib.suppress(FileNotFoundError):
                (aside / p.name).rename(p)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def move_pages(source: Path, target: Path, *, rank: int | None) -> None:
    """Move this rank's closed pages into ``target``, also from another file system.

    A page's lines come after its tensors, and the catalogue last: what a reader finds there is whole at any moment.
    """
    order = {"safetensors": 0, "pkl": 0, "jsonl": 1, "catalogue": 2}
    moving = sorted(
        (order[parsed[2]], p) for p in page_files(source) if (parsed := page.parse_name(p.name)) and parsed[1] == rank
    )
    there: list[Path] = []
    try:
        for _, p in moving:
            _link_or_copy(p, target / p.name)
            there.append(target / p.name)
    except OSError:
        for copy in there:  # all of it stays where it was
            copy.unlink()
        raise
    page.sync_folder(target)
    for _, p in reversed(moving):
        p.unlink()


def _link_or_copy(source: Path, target: Path) -> None:
    """Have ``source`` under ``target`` as well: at every moment one of the two folders holds all pages."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(source, part)
            with open(part, "rb+") as f:
                os.fsync(f.fileno())
            os.rename(part, target)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
