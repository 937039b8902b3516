"""Printing to a terminal, a pipe or a file. No text is interpreted as markup."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import track

PIPE_WIDTH = 200
"""Columns of a pipe or file, unless ``COLUMNS`` is set."""

T = TypeVar("T")


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    printer = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not printer.is_terminal and "COLUMNS" not in os.environ:
        printer.width = PIPE_WIDTH
    return printer


def print_json(facts: Any) -> None:
    """Print strict JSON."""
    click.echo(json.dumps(facts, indent=2, allow_nan=False))


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """The items one by one, with a progress line on stderr, if that is a terminal."""
    printer = console(stderr=True)
    return track(items, what, console=printer, transient=True, disable=not printer.is_terminal)
