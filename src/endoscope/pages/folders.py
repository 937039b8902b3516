"""Folders of pages: their files, preparing a folder for new pages, moving pages to another folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from endoscope.errors import ConfigError, FolderInUseError
from endoscope.pages.names import FileName, parse_name


def page_files(folder: Path) -> list[Path]:
    """Every file in ``folder`` that belongs to pages, of any rank and format."""
    return sorted(_parsed_files(folder))


def _parsed_files(folder: Path) -> dict[Path, FileName]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return {path: name for path in folder.iterdir() if (name := parse_name(path.name)) is not None}
    return {}


def next_page(folder: Path, rank: int | None) -> int:
    """The first page number that a rank has not used."""
    return 1 + max((name.page for name in _parsed_files(folder).values() if name.rank == rank), default=-1)


# ---------------------------------------------------------------- a folder for new pages
def ensure_folder(folder: Path, key: str) -> None:
    """Ensure that a folder exists and can be written; errors name ``key``, its argument or config key."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"{key}: cannot make the folder {str(folder)!r}: {e.strerror}; choose another") from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: cannot write into {str(folder)!r}; choose another")


def check_folder(folder: Path, *, rank: int | None, world_size: int, overwrite: bool) -> list[Path]:
    """Ensure that ``folder`` exists; returns an earlier capture's pages, which are refused unless ``overwrite``."""
    ensure_folder(folder, "output_dir")
    old = sorted(path for path, name in _parsed_files(folder).items() if _is_ours(name, rank, world_size))
    if old and not overwrite:
        raise FolderInUseError(
            f"{str(folder)!r} already holds pages ({old[0].name}, ...); "
            "choose another folder, or pass overwrite=True to replace them"
        )
    return sorted(old, key=_catalogues_first)


def _is_ours(name: FileName, rank: int | None, world_size: int) -> bool:
    """Whether this process may replace a file: its own rank's; for rank 0 also files of ranks that no longer exist."""
    if name.rank == rank:
        return True
    return rank in (None, 0) and (name.rank is None or rank is None or name.rank >= world_size)


def prepare_folder(folder: Path, *, rank: int | None, world_size: int = 1, overwrite: bool = False) -> None:
    """Make ``folder`` ready for new pages: it exists, can be written, and holds no pages of an earlier capture."""
    for p in check_folder(folder, rank=rank, world_size=world_size, overwrite=overwrite):
        p.unlink()


def remove_pages(folder: Path) -> None:
    """Remove the pages of every rank, and the folder if nothing else is in it. Links are not followed."""
    if folder.is_symlink():
        return
    for p in sorted(page_files(folder), key=_catalogues_first):
        p.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _catalogues_first(path: Path) -> bool:
    return not path.name.startswith("catalogue")


# ---------------------------------------------------------------- moving
def replace_pages(source: Path, target: Path, old: list[Path], *, rank: int | None) -> None:
    """Move pages into ``target`` in place of ``old``, which are restored if that fails."""
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
    """Move this rank's closed pages into ``target``, also to another file system.

    A page's lines come after its tensors, and the catalogue comes last: at any moment a reader finds complete pages.
    """
    order = {"safetensors": 0, "pkl": 0, "jsonl": 1, "catalogue": 2}
    files = {path: order[name.kind] for path, name in _parsed_files(source).items() if name.rank == rank}
    moving = sorted(files, key=lambda path: (files[path], path))
    copies: list[Path] = []
    try:
        for p in moving:
            _link_or_copy(p, target / p.name)
            copies.append(target / p.name)
    except OSError:
        for copy in copies:  # everything stays in the source
            copy.unlink()
        raise
    sync_folder(target)
    for p in reversed(moving):
        p.unlink()


def _link_or_copy(source: Path, target: Path) -> None:
    """Create ``target`` beside ``source``: at every moment one of the two folders holds all pages."""
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
