"""What ``endoscope train`` and ``endoscope eval`` share: from a config file to a runner that has run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

_CONFIG = click.Path(dir_okay=False, path_type=Path)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """CONFIG, or ``--config-filepath CONFIG``, and ``--set key=value``."""
    changed = "Change a key of the config, as in --set optimizer.args.lr=0.01."
    command = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=changed)(command)
    command = click.option("--config-filepath", "config_filepath", type=_CONFIG, hidden=True)(command)
    return click.argument("config", type=_CONFIG, required=False)(command)


def run_config(
    job: Literal["train", "eval"], config: Path | None, config_filepath: Path | None, overrides: Sequence[str]
) -> Any:
    """Run the job that a config file describes; an interrupted one ends the process with the signal's exit code."""
    from endoscope.runners.config_file import apply_overrides, load_config
    from endoscope.runners.interrupt import Interrupted

    if (config is None) == (config_filepath is None):
        raise click.UsageError("give the config file" if config is None else "give one config file, not two")
    path = config or config_filepath
    assert path is not None
    try:
        loaded = load_config(path)
        return _run(job, apply_overrides(loaded, list(overrides), keys=_keys(loaded.get("runner"))))
    except Interrupted as e:
        after = "the same command resumes it after the last whole epoch" if job == "train" else "start it again"
        if os.environ.get("RANK", "0") == "0":  # under torchrun one process speaks
            click.echo(f"{e}; {after}", err=True)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:  # before the run began, or for the second time
        click.echo("interrupted", err=True)
        sys.exit(128 + signal.SIGINT)


def _keys(runner: Any) -> Sequence[str]:
    """The keys that may be set: those of the config's own runner."""
    from endoscope.runners.runner import BaseRunner
    from endoscope.runners.settings import key_names

    known = isinstance(runner, type) and issubclass(runner, BaseRunner)
    return key_names(runner.settings_class if known else BaseRunner.settings_class)


def _run(job: Literal["train", "eval"], settings: dict[str, Any]) -> Any:
    from endoscope.errors import ConfigError
    from endoscope.runners.runner import BaseRunner
    from endoscope.runners.supervised import SupervisedEvaluator, SupervisedTrainer

    runner = settings.get("runner") or (SupervisedTrainer if job == "train" else SupervisedEvaluator)
    if not (isinstance(runner, type) and issubclass(runner, BaseRunner) and runner.job == job):
        base = "BaseTrainer" if job == "train" else "BaseEvaluator"
        raise ConfigError(f"runner: found {runner!r}; expected a subclass of endoscope.runners.{base}")
    return runner(settings).run()  # type: ignore[attr-defined]
