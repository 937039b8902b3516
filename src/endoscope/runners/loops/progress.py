"""Progress on the screen: a bar on a terminal, plain lines elsewhere, nothing on ranks other than 0."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
REDRAW_S = 0.1
LINE_S = 30.0


class Silent:
    def over(self, items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
        """Iterate over the items and show the progress."""
        yield from items

    def report(self, line: str) -> None:
        pass


class Lines:
    """For log files: one line per epoch, and one every `LINE_S` seconds in a long epoch."""

    def over(self, items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
        of = f" of {total}" if total else ""
        last = time.monotonic()
        for k, item in enumerate(items):
            if time.monotonic() - last > LINE_S:
                last = time.monotonic()
                self.report(f"{what}: batch {k}{of}")
            yield item

    def report(self, line: str) -> None:
        print(line, flush=True)  # noqa: T201  # its purpose


class Bar:
    """For a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stdout, highlight=False, emoji=False)

    def over(self, items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with RichProgress(*columns, console=self._console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task(what, total=total)
            drawn = time.monotonic()
            for k, item in enumerate(items):
                if time.monotonic() - drawn > REDRAW_S:
                    drawn = time.monotonic()
                    bar.update(task, completed=k, refresh=True)
                yield item

    def report(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def progress(*, first_rank: bool) -> Silent | Lines | Bar:
    if not first_rank:
        return Silent()
    return Bar() if sys.stdout.isatty() else Lines()
