"""Checking captures byte by byte: the result as facts and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.filesize import decimal

from endoscope.commands.captures import Capture, capture_facts, reading
from endoscope.commands.console import progress
from endoscope.commands.text import printable
from endoscope.pages.reader import Damage
from endoscope.pages.verify import verify_folder


@dataclass(frozen=True)
class CheckedCapture:
    """The facts of a capture and its damage; ``damage`` is None if the capture could not be checked."""

    about: dict[str, Any]
    damage: tuple[Damage, ...] | None

    def facts(self) -> dict[str, Any]:
        if self.damage is None:
            return {**self.about, "checked": False, "damage": None}
        damage = [{**asdict(d), "indices": list(d.indices)} for d in self.damage]
        return {**self.about, "checked": True, "damaged": len(damage), "damage": damage}


@dataclass(frozen=True)
class CheckResult:
    captures: tuple[CheckedCapture, ...]

    @property
    def checked(self) -> list[CheckedCapture]:
        return [c for c in self.captures if c.damage is not None]

    @property
    def damaged(self) -> int:
        return sum(len(c.damage or ()) for c in self.captures)

    @property
    def exit_code(self) -> int:
        return 1 if self.damaged else 0 if self.checked else 2

    def facts(self) -> dict[str, Any]:
        return {"captures": [c.facts() for c in self.captures], "damaged": self.damaged}

    def lines(self) -> Iterator[str]:
        for c in self.captures:
            name = printable(c.about["capture"])
            if c.damage is None:
                yield f"{name}: not checked, because opening pickle pages can run code"
            for d in c.damage or ():
                yield printable(f"{name}/{d}")
        yield self._summary()

    def _summary(self) -> str:
        pages, points, size = (sum(c.about[k] for c in self.checked) for k in ("pages", "datapoints", "bytes"))
        result = f"damaged: {self.damaged}" if self.damaged else "no damage" if self.checked else "nothing was checked"
        unfinished = sum(c.about["state"] == "unfinished" for c in self.checked)
        note = f" ({unfinished} unfinished, checked as far as written)" if unfinished else ""
        return f"captures {len(self.checked)}{note}, pages {pages}, datapoints {points}, {decimal(size)}: {result}"


def check_captures(captures: Sequence[Capture]) -> CheckResult:
    """Read and verify every byte, with a progress line on a terminal."""
    checked = []
    with progress(captures, "checking captures") as remaining:
        for capture in remaining:
            about = capture_facts(capture)
            with reading(capture.folder):
                damage = None if capture.is_pickle else tuple(verify_folder(capture.folder))
            checked.append(CheckedCapture(about, damage))
    return CheckResult(tuple(checked))
