"""What the commands print with: consoles that suit a person, a pipe and a test alike. Nothing is taken as markup."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PIPE_WIDTH = 200
"""Columns to lay out for when nobody's terminal says how many there are."""

T = TypeVar("T")


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; into a pipe or file, lines are not cut to a terminal's width."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_WIDTH
    return made


def print_json(facts: Any) -> None:
    """Print facts as JSON that any parser takes."""
    click.echo(json.dumps(facts, indent=2, allow_nan=False))


@contextmanager
def progress(items: Sequence[T], unit: str) -> Iterator[Iterator[T]]:
    """Go through ``items`` with a progress line on stderr, where that is a terminal."""
    shown = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(unit), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task(unit, total=len(items))

        def advancing() -> Iterator[T]:
            for item in items:
                yield item
                bar.advance(task)

        yield advancing()
