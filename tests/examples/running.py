"""Runs in a forked child: commands of the command line, from the folder of a clone, in a work folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.warm import Say

from endoscope.cli import main

ROOT = Path(__file__).parents[2]


def run(say: Say, folder: str, commands: list[list[str]]) -> None:
    os.chdir(folder)
    Path("examples").symlink_to(ROOT / "examples")
    for command in commands:
        main(command, standalone_mode=False)
        say(command[0])
