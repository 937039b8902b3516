"""What ``endoscope train`` and ``endoscope eval`` share: from a config file to a runner that has run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import click

_CONFIG = click.Path(dir_okay=False, path_type=Path)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """CONFIG, or ``--config-filepath CONFIG``, and ``--set key=value``."""
    changed = "Change a key of the config, as in --set optimizer.args.lr=0.01."
    command = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=changed)(command)
    again = "CONFIG by the name of an option, as main.py and eval.py are given it."
    command = click.option("--config-filepath", "config_filepath", type=_CONFIG, metavar="CONFIG", help=again)(command)
    return click.argument("config", type=_CONFIG, required=False)(command)


def run_config(
    job: Literal["train", "eval"], config: Path | None, config_filepath: Path | None, overrides: Sequence[str]
) -> None:
    """Run the job that a config file describes; an interrupted one ends the process with the signal's exit code."""
    if (config is None) == (config_filepath is None):
        raise click.UsageError("give the config file" if config is None else "give one config file, not two")
    path = config or config_filepath
    assert path is not None
    try:
        _run(job, path, overrides)
    except KeyboardInterrupt as e:
        code = getattr(e, "exit_code", None)
        if code is None:  # before the run began, or for the second time
            click.echo("interrupted", err=True)
            sys.exit(128 + signal.SIGINT)
        after = "the same command resumes it after the last whole epoch" if job == "train" else "start it again"
        if os.environ.get("RANK", "0") == "0":  # under torchrun one process speaks
            click.echo(f"{e}; {after}", err=True)
        sys.exit(code)


def _run(job: Literal["train", "eval"], path: Path, overrides: Sequence[str]) -> None:
    from endoscope.errors import ConfigError
    from endoscope.runners.config import kinds
    from endoscope.runners.config.file import apply_overrides, load_config
    from endoscope.runners.config.settings import key_names, read_key
    from endoscope.runners.loops.runner import BaseRunner
    from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer

    loaded = load_config(path)
    # The runner comes first: it says which other keys there are.
    of_runner = [one for one in overrides if one.partition("=")[0].strip() == "runner"]
    chosen = apply_overrides(loaded, of_runner)
    if chosen.get("runner") is not None:
        chosen["runner"] = read_key("runner", chosen["runner"])
    runner = chosen.get("runner") or (SupervisedTrainer if job == "train" else SupervisedEvaluator)
    if not (issubclass(runner, BaseRunner) and getattr(runner, "job", None) == job):
        base, default = ("Trainer", SupervisedTrainer) if job == "train" else ("Evaluator", SupervisedEvaluator)
        raise ConfigError(
            f"runner: found {kinds.shown(runner)}; expected a subclass of endoscope.runners.Base{base}\n"
            f"--set runner=None takes {default.__name__}, --set runner=MODULE.CLASS your own"
        )
    others = [one for one in overrides if one not in of_runner]
    made = runner(apply_overrides(chosen, others, keys=key_names(runner.settings_class)))
    made.run()
    made.progress.say(f"to look at it:  endoscope view {quote(str(made.settings.work_dir))}")
