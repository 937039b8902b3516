"""Whether a config belongs to the run in a folder: which keys may differ when a run is resumed, and which may not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endoscope.errors import ConfigError
from endoscope.runners.config.kinds import shortened
from endoscope.runners.config.plain import MISSING, as_json, differences
from endoscope.runners.config.settings import Settings
from endoscope.runs import layout
from endoscope.runs.about import About
from endoscope.runs.files import Missing, load_json, opened

MAY_CHANGE = ("epochs", "work_dir", "checkpoint_method", "debugger", "save_datapoints", "class_names", "device",
              "torch_threads", "unused_parameters")  # fmt: skip
"""Keys that may differ when a run is resumed. With any other difference in a training key it is another run."""
DEFAULT_RUNNER = "endoscope.runners.loops.supervised.SupervisedTrainer"


def check_same_run(work_dir: Path, config: Mapping[str, Any], settings: type[Settings]) -> dict[str, Any]:
    """Refuse a config of another run than the one in ``work_dir``. Returns the content of its ``config.json``.

    A key that is set to its default equals a key that is missing.
    """
    before = _stored_config(work_dir)
    if before is None:
        return {}
    changed = differences(_with_defaults(before, settings), _with_defaults(as_json(config), settings))
    if changed:
        path, there, here = changed[0]
        raise ConfigError(
            f"work_dir: {str(work_dir)!r} holds a run with another {path}: {_shown(there)} there, {_shown(here)} here\n"
            "a run can only be resumed with its own config; choose another work_dir for this one"
        )
    return before


def warn_of_changes(earlier: About, config: Mapping[str, Any], about: Mapping[str, Any], settings: Settings) -> None:
    """Warn about allowed changes that affect bit-for-bit results.

    earlier, config: run.json and config.json of the run. A value that they do not record is not compared.
    """
    changes = {
        "device": (earlier.device and earlier.device.split(":")[0], about["device"].split(":")[0]),
        "world_size": (earlier.world_size, about["world_size"]),
    }
    changes = {name: values for name, values in changes.items() if values[0] is not None}
    if config:
        changes["torch_threads"] = (config.get("torch_threads"), settings.torch_threads)
    for name, (before, now) in changes.items():
        if before != now:
            warnings.warn(
                f"{name}: the run is resumed with {now} instead of {before}; its result may differ in the last bits "
                "from that of a run without an interruption",
                stacklevel=4,
            )


def _stored_config(work_dir: Path) -> dict[str, Any] | None:
    shown = repr(str(work_dir / layout.CONFIG))
    try:
        with opened(work_dir, layout.CONFIG) as file:
            config = load_json(file)
        if not isinstance(config, dict):
            raise ValueError("it does not hold a config")
    except Missing:
        warnings.warn(f"work_dir: {shown} is missing, so nothing checks that the run has this config", stacklevel=4)
        return None
    except (ValueError, RecursionError, OSError) as e:
        raise ConfigError(
            f"work_dir: {shown} cannot be read, so nothing shows that the run has this config: {e}\n"
            "restore it, or delete it to resume the run without this check"
        ) from None
    return config


def _with_defaults(config: Mapping[str, Any], settings: type[Settings]) -> dict[str, Any]:
    """The keys that affect the result, with defaults for those that are missing."""
    keys = {
        name: config.get(name, as_json(default))
        for name, known, default in settings._keys()
        if "train" in known.jobs and name not in MAY_CHANGE
    }
    return {**keys, "runner": keys["runner"] or DEFAULT_RUNNER}


def _shown(value: Any) -> str:
    return "nothing" if value is MISSING else shortened(json.dumps(value))
