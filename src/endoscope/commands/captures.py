"""Captures below a work dir: where they are, what they hold, and which one a command means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from endoscope.errors import DatapointNotFoundError, EndoscopeError, PageError, UntrustedPickleError
from endoscope.pages.folders import page_files
from endoscope.pages.reader import DebugOutputs

State = Literal["closed", "unfinished", "empty", "not opened"]


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
        """Raises `UntrustedPickleError` for pickle pages: no command opens those but ``pages import``."""
        if self.is_pickle:
            raise UntrustedPickleError(
                f"{str(self.folder)!r} holds pickle pages, and opening a pickle can run any code; if you trust where "
                f"they come from, convert them first: endoscope pages import {self.folder} NEW_DIR --trust"
            )
        with reading(self.folder):
            return DebugOutputs(self.folder)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the system's refusal to read ``path`` into a `PageError`."""
    try:
        yield
    except EndoscopeError:
        raise
    except OSError as e:
        raise PageError(f"cannot read {str(path)!r}: {e.strerror}") from e


# ---------------------------------------------------------------- finding
def find_captures(work_dir: Path) -> list[Capture]:
    """Every capture of a run: in ``work_dir``, its ``debugger/``, and each ``epoch_*`` in natural order."""
    found = []
    with reading(work_dir):
        for folder, epoch in _places(work_dir):
            files = page_files(folder)
            if files or (folder.name == "debugger" and folder != work_dir and folder.is_dir()):
                found.append(Capture(folder, str(folder.relative_to(work_dir)), epoch, tuple(files)))
    return found


def _places(work_dir: Path) -> Iterator[tuple[Path, int | None]]:
    epochs = [Path(e.path) for e in os.scandir(work_dir) if e.name.startswith("epoch_") and e.is_dir()]
    for folder in (work_dir, *sorted(epochs, key=lambda p: natural_order(p.name))):
        number = folder.name.removeprefix("epoch_")
        epoch = int(number) if folder != work_dir and re.fullmatch("[0-9]+", number) else None
        yield folder, epoch
        yield folder / "debugger", epoch


def natural_order(name: str) -> tuple[Any, ...]:
    """A sort key that puts epoch_4 before epoch_10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name))


def none_found(work_dir: Path) -> str:
    """What to say when a work dir has no capture; names the runs one level below, if that is where they are."""
    with reading(work_dir):
        below = sorted((Path(e.path) for e in os.scandir(work_dir) if e.is_dir()), key=lambda p: natural_order(p.name))
    runs = [p for p in below if os.access(p, os.R_OK | os.X_OK) and find_captures(p)]
    hint = f"; there are runs below it, such as {str(runs[-1])!r}" if runs else ""
    return f"no captures in {str(work_dir)!r}: looked for pages in it, in debugger/ and in epoch_*/debugger/{hint}"


# ---------------------------------------------------------------- choosing
@dataclass(frozen=True)
class Chosen:
    """The capture that a command works on, and what to tell the user when the choice was ours."""

    capture: Capture
    remark: str | None = None


def choose_capture(work_dir: Path, epoch: int | None) -> Chosen:
    """The capture of ``epoch``, or the last one that holds pages."""
    captures = [c for c in find_captures(work_dir) if c.files]
    if not captures:
        raise PageError(none_found(work_dir))
    if epoch is not None:
        fitting = [c for c in captures if c.epoch == epoch]
        if not fitting:
            raise DatapointNotFoundError(f"no pages of epoch {epoch} in {str(work_dir)!r}; it has {_names(captures)}")
        return Chosen(fitting[-1])
    if len(captures) == 1:
        return Chosen(captures[0])
    last = captures[-1]
    return Chosen(last, f"{len(captures)} captures; taking the last, {last.name}; choose another with --epoch")


def _names(captures: Sequence[Capture]) -> str:
    epochs = [str(c.epoch) for c in captures if c.epoch is not None]
    return f"epoch {', '.join(epochs)}" if epochs else ", ".join(c.name for c in captures)


# ---------------------------------------------------------------- facts
def capture_facts(capture: Capture) -> dict[str, Any]:
    """What opening a capture tells without reading its tensors; pickle pages are counted, not opened."""
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
        return {
            **facts,
            "state": _state(outputs),
            "pages": len(outputs.pages),
            "records": outputs.records,
            "datapoints": len(outputs),
            "dropped": outputs.dropped,
            "damaged": len(outputs.damage),
        }


def _state(outputs: DebugOutputs) -> State:
    if not outputs.pages:
        return "empty"
    return "closed" if all(p.closed for p in outputs.pages) else "unfinished"
