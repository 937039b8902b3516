"""``endoscope train CONFIG`` and ``endoscope eval CONFIG``: from a config file to a finished run."""

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
Job = Literal["train", "eval"]


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    change = "Change a key of the config, as in --set optimizer.args.lr=0.01; may be repeated."
    command = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=change)(command)
    same = "The same as CONFIG; main.py and eval.py use this form."
    command = click.option("--config-filepath", "config_filepath", type=_CONFIG, metavar="CONFIG", help=same)(command)
    return click.argument("config", type=_CONFIG, required=False)(command)


@click.command()
@_config_options
def train(config: Path | None, config_filepath: Path | None, overrides: tuple[str, ...]) -> None:
    """Train a model as CONFIG describes.

    CONFIG is a Python file with config = {...}. A run that was stopped is resumed.
    """
    _run_config("train", config, config_filepath, overrides)


@click.command()
@_config_options
def eval(config: Path | None, config_filepath: Path | None, overrides: tuple[str, ...]) -> None:
    """Evaluate a model as CONFIG describes, with its debuggers enabled.

    CONFIG is a Python file with config = {...}.
    """
    _run_config("eval", config, config_filepath, overrides)


def _run_config(job: Job, config: Path | None, config_filepath: Path | None, overrides: Sequence[str]) -> None:
    """Run the job. An interrupted run exits with the signal's exit code."""
    path = config or config_filepath
    if path is None:
        raise click.UsageError(f"no config file; expected: endoscope {job} CONFIG")
    if config is not None and config_filepath is not None:
        raise click.UsageError("two config files; give CONFIG or --config-filepath CONFIG, not both")
    try:
        _run(job, path, overrides)
    except KeyboardInterrupt as e:
        exit_code = getattr(e, "exit_code", None)
        if exit_code is None:  # before the run began, or a second Ctrl-C
            click.echo("interrupted", err=True)
            sys.exit(128 + signal.SIGINT)
        advice = "the same command resumes it after the last complete epoch" if job == "train" else "start it again"
        if os.environ.get("RANK", "0") == "0":  # under torchrun one process prints
            click.echo(f"{e}; {advice}", err=True)
        sys.exit(exit_code)


def _run(job: Job, path: Path, overrides: Sequence[str]) -> None:
    from endoscope.runners.config.file import apply_overrides, load_config
    from endoscope.runners.config.settings import key_names

    # The runner comes first, because it defines which other keys exist.
    of_runner = [override for override in overrides if override.partition("=")[0].strip() == "runner"]
    others = [override for override in overrides if override not in of_runner]
    config = apply_overrides(load_config(path), of_runner)
    runner_class = _runner_class(job, config.get("runner"))
    runner = runner_class(apply_overrides(config, others, keys=key_names(runner_class.settings_class)))
    runner.run()
    runner.progress.report(f"to look at it:  endoscope view {quote(str(runner.settings.work_dir))}")


def _runner_class(job: Job, value: Any) -> Any:
    """The class that the config's key ``runner`` names, or the default."""
    from endoscope.errors import ConfigError
    from endoscope.runners.config import kinds
    from endoscope.runners.config.settings import read_key
    from endoscope.runners.loops.runner import BaseRunner
    from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer

    default: type[BaseRunner] = SupervisedTrainer if job == "train" else SupervisedEvaluator
    if value is None:
        return default
    runner_class = read_key("runner", value)
    if not (issubclass(runner_class, BaseRunner) and getattr(runner_class, "job", None) == job):
        base = "BaseTrainer" if job == "train" else "BaseEvaluator"
        raise ConfigError(
            f"runner: found {kinds.shown(runner_class)}; expected a subclass of endoscope.runners.{base}\n"
            f"--set runner=None uses {default.__name__}, --set runner=MODULE.CLASS your own"
        )
    return runner_class
