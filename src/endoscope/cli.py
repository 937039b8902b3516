"""The ``endoscope`` command: which subcommands there are, and how an error reaches the person who typed.

The subcommands are in `endoscope.commands`, imported when they are named; what they import in turn (torch, rich) they
import when they run, so that ``endoscope --help`` answers at once.
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
    "eval": "endoscope.commands.eval",
    "pages": "endoscope.commands.pages",
    "train": "endoscope.commands.train",
    "view": "endoscope.commands.view",
}
"""Each subcommand and the module that has it, under the same name."""


class _Wrong(click.ClickException):
    """An `EndoscopeError` as a message: input that cannot work."""

    exit_code = 2

    def __init__(self, error: EndoscopeError) -> None:
        several = os.environ.get("WORLD_SIZE", "") not in ("", "1")  # under torchrun each says who it is
        who = f"rank {os.environ.get('RANK')}: " if several else ""
        super().__init__(who + "\n".join(map(printable, str(error).split("\n"))))


class _Damaged(_Wrong):
    """The input was right, but what it names is damaged."""

    exit_code = 1


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
            ctx.fail(f"no command {args[0]!r}{closest(args[0], COMMANDS) or '; there are: ' + ', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EndoscopeError as e:
            raise (_Damaged if isinstance(e, DamagedRecordError) else _Wrong)(e) from e


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="endoscope")
def main() -> None:
    """See inside a PyTorch model while it trains, and find out why it fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows '?', and not a traceback
