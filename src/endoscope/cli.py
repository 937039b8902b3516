"""The ``endoscope`` command: its subcommands, and errors as messages with exit codes.

The subcommands are in `endoscope.commands` and are imported when they are named. They import torch and rich only when
they run, so that ``endoscope --help`` answers at once.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from endoscope import __version__
from endoscope.commands.text import printable
from endoscope.errors import DamagedRecordError, EndoscopeError, closest

COMMANDS = {
    "demo": "endoscope.commands.demo",
    "eval": "endoscope.commands.running",
    "pages": "endoscope.commands.pages",
    "train": "endoscope.commands.running",
    "view": "endoscope.commands.view",
}
"""Each subcommand and the module that defines it under the same name."""


class _Refused(click.ClickException):
    """An `EndoscopeError` as a message. Exit code 2 means wrong input, 1 that it names damaged data."""

    exit_code: int  # type: ignore[misc]  # a class variable in click

    def __init__(self, error: EndoscopeError) -> None:
        self.exit_code = 1 if isinstance(error, DamagedRecordError) else 2
        several_ranks = os.environ.get("WORLD_SIZE", "") not in ("", "1")
        rank = f"rank {os.environ.get('RANK')}: " if several_ranks else ""
        super().__init__(rank + "\n".join(map(printable, str(error).split("\n"))))


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            hint = closest(args[0], COMMANDS) or f"; the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EndoscopeError as e:
            raise _Refused(e) from e


@click.group("endoscope", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="endoscope")
def main() -> None:
    """See inside a PyTorch model while it trains, and find out why it fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows '?' instead of a traceback
