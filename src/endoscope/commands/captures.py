"""The captures of a run: finding them, choosing one, and their facts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from endoscope.errors import DatapointNotFoundError, EndoscopeError, PageError, UntrustedPickleError
from endoscope.pages.folders import page_files
from endoscope.pages.reader import DebugOutputs
from endoscope.runs import layout


@dataclass(frozen=True)
class Capture:
    """One folder of pages; ``name`` is its path below the work dir, ``"."`` for the work dir itself."""

    folder: Path
    name: str
    epoch: int | None
    files: tuple[Path, ...]

    @property
    def is_pickle(self) -> bool:
        return any(f.suffix == ".pkl" for f in self.files)

    @property
    def nbytes(self) -> int:
        with reading(self.folder):
            return sum(f.stat().st_size for f in self.files)

    def open(self) -> DebugOutputs:
        """Raises `UntrustedPickleError` for pickle pages, which only ``pages import`` opens."""
        if self.is_pickle:
            raise UntrustedPickleError(
                f"{str(self.folder)!r} holds pickle pages, and opening a pickle can run any code\n"
                "if you trust their author, convert them first:\n"
                f"endoscope pages import {self.folder} NEW_DIR --trust"
            )
        with reading(self.folder):
            return DebugOutputs(self.folder)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise an `OSError` inside the block as a `PageError` that names ``path``."""
    try:
        yield
    except EndoscopeError:
        raise
    except OSError as e:
        raise PageError(f"cannot read {str(path)!r}: {e.strerror}") from e


# ---------------------------------------------------------------- finding
def find_captures(work_dir: Path) -> list[Capture]:
    """The captures of a run: in ``work_dir``, each ``epoch_N``, and the ``debugger/`` of these, in order."""
    captures = []
    with reading(work_dir):
        for epoch, parent in [(None, work_dir), *layout.epoch_folders(work_dir).items()]:
            for folder in (parent, parent / layout.DEBUGGER):
                files = page_files(folder)
                if files or (folder != parent and folder.is_dir()):
                    captures.append(Capture(folder, str(folder.relative_to(work_dir)), epoch, tuple(files)))
    return captures


def no_captures(work_dir: Path) -> str:
    """The message for a work dir without captures; it names a run one level below, if there is one."""
    with reading(work_dir):
        below = sorted(Path(e.path) for e in os.scandir(work_dir) if e.is_dir())
    runs = [p for p in below if os.access(p, os.R_OK | os.X_OK) and find_captures(p)]
    hint = f"\nthere are runs below it, such as {str(runs[-1])!r}" if runs else ""
    return f"no captures in {str(work_dir)!r}; looked for pages in it, in debugger/ and in epoch_*/debugger/{hint}"


def choose_capture(work_dir: Path, epoch: int | None) -> Capture:
    """The capture of ``epoch``, or the last one that holds pages; prints which, if there are several."""
    captures = [c for c in find_captures(work_dir) if c.files]
    if not captures:
        raise PageError(no_captures(work_dir))
    if epoch is not None:
        captures = _of_epoch(captures, epoch, work_dir)
    elif len(captures) > 1:
        remark = f"{len(captures)} captures; using the last, {captures[-1].name}; choose another with --epoch"
        click.echo(remark, err=True)
    return captures[-1]


def _of_epoch(captures: list[Capture], epoch: int, work_dir: Path) -> list[Capture]:
    matches = [c for c in captures if c.epoch == epoch]
    if not matches:
        epochs = ", ".join(str(c.epoch) for c in captures if c.epoch is not None)
        existing = f"its epochs with pages are {epochs}" if epochs else "it has no epochs; leave out --epoch"
        raise DatapointNotFoundError(f"no pages of epoch {epoch} in {str(work_dir)!r}; {existing}")
    return matches


# ---------------------------------------------------------------- facts
def capture_facts(capture: Capture) -> dict[str, Any]:
    """The facts of a capture, without reading its tensors. Pickle pages are counted but not opened."""
    facts: dict[str, Any] = {
        "capture": capture.name,
        "epoch": capture.epoch,
        "format": "pickle" if capture.is_pickle else "safetensors",
        "bytes": capture.nbytes,
    }
    if capture.is_pickle:
        pages = sum(f.suffix == ".pkl" for f in capture.files)
        unknown = dict.fromkeys(("records", "datapoints", "dropped", "damaged"))
        return {**facts, "state": "not opened", "pages": pages, **unknown}
    with capture.open() as outputs:
        closed = all(page.closed for page in outputs.pages)
        return {
            **facts,
            "state": "empty" if not outputs.pages else "closed" if closed else "unfinished",
            "pages": len(outputs.pages),
            "records": outputs.records,
            "datapoints": len(outputs),
            "dropped": outputs.dropped,
            "damaged": len(outputs.damage),
        }
