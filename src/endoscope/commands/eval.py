"""``endoscope eval CONFIG``."""

from __future__ import annotations

from pathlib import Path

import click

from endoscope.commands.running import config_options, run_config


@click.command()
@config_options
def eval(config: Path | None, config_filepath: Path | None, overrides: tuple[str, ...]) -> None:
    """Evaluate a model as CONFIG describes, with its debuggers enabled.

    CONFIG is a Python file with config = {...}.
    """
    run_config("eval", config, config_filepath, overrides)
