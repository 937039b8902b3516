"""``endoscope train CONFIG``."""

from __future__ import annotations

from pathlib import Path

import click

from endoscope.commands.running import config_options, run_config


@click.command()
@config_options
def train(config: Path | None, config_filepath: Path | None, overrides: tuple[str, ...]) -> None:
    """Train a model as CONFIG describes.

    CONFIG is a Python file with config = {...}. A run that was stopped is resumed.
    """
    run_config("train", config, config_filepath, overrides)
