"""Whether a config is that of the run that a folder holds: what may be another when it is resumed, and what not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endoscope.errors import ConfigError
from endoscope.runners.config.plain import MISSING, as_json, differences
from endoscope.runners.config.settings import Settings
from endoscope.runs import layout
from endoscope.runs.files import Missing, load_json, opened

MAY_CHANGE = ("epochs", "work_dir", "checkpoint_method", "debugger", "save_datapoints", "class_names", "device",
              "torch_threads", "unused_parameters")  # fmt: skip
"""Keys that may differ when a run is resumed; any other that training uses makes it another run."""
DEFAULT_RUNNER = "endoscope.runners.loops.supervised.SupervisedTrainer"
_MAX_TEXT = 80


def check_same_run(work_dir: Path, config: Mapping[str, Any], settings: type[Settings]) -> dict[str, Any]:
    """Refuse another config than that of the run in ``work_dir``; returns that one, as ``config.json`` has it.

    A key that is spelt out with its default is the same as one that is left out.
    """
    before = _config_of(work_dir)
    if before is None:
        return {}
    changed = differences(_filled(before, settings), _filled(as_json(config), settings))
    if changed:
        path, there, here = changed[0]
        raise ConfigError(
            f"work_dir: {str(work_dir)!r} holds a run with another {path}: {_shown(there)} there, {_shown(here)} here\n"
            "a run is resumed with its own config only; choose another work_dir for this one"
        )
    return before


def warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Tell what may be another and changes the last bits; what is not known of ``before`` is passed over."""
    for name in now:
        if name in before and before[name] != now[name]:
            warnings.warn(
                f"{name}: the run is resumed with {now[name]}, and had {before[name]}; its result may not be, bit for "
                "bit, that of a run without an interruption",
                stacklevel=3,
            )


def _config_of(work_dir: Path) -> dict[str, Any] | None:
    shown = repr(str(work_dir / layout.CONFIG))
    try:
        with opened(work_dir, layout.CONFIG) as file:
            found = load_json(file)
        if not isinstance(found, dict):
            raise ValueError("it holds no config")
    except Missing:
        warnings.warn(
            f"work_dir: there is no {shown}; whether the run there has this config is not checked", stacklevel=4
        )
        return None
    except (ValueError, RecursionError, OSError) as e:
        raise ConfigError(
            f"work_dir: {shown} cannot be read, and shows whether the run there has this config: {e}\n"
            "put it back, or delete it to resume the run without this check"
        ) from None
    return found


def _filled(config: Mapping[str, Any], settings: type[Settings]) -> dict[str, Any]:
    """What the result depends on, with the defaults of what is left out."""
    found = {
        name: config.get(name, as_json(default))
        for name, known, default in settings._keys()
        if "train" in known.jobs and name not in MAY_CHANGE
    }
    return {**found, "runner": found["runner"] or DEFAULT_RUNNER}


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
