"""The user's config file: loading it, and overriding its values.

Loading runs the file. It is meant for a config that the user wrote, never for a run that is opened.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from endoscope.config import copy_containers, is_node
from endoscope.errors import ConfigError, closest
from endoscope.runners.config.kinds import shown
from endoscope.runners.config.settings import key_names

NAME = "config"
"""The variable that a config file defines."""


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Run a Python file and return the ``config`` that it defines.

    >>> load_config("configs/digits.py")["epochs"]
    10

    As with ``python configs/digits.py``, the file's folder becomes the first entry of ``sys.path``. It stays there:
    class paths in the config are imported later, and DataLoader workers import what they unpickle. The module is named
    after the file (``digits``), so that spawned workers find the classes it defines. If another module has that name,
    the module gets a unique name, which only forked workers know.
    """
    file = Path(path).expanduser().absolute()
    _check_file(file, path)
    path_before = list(sys.path)
    if sys.path[:1] != [str(file.parent)]:
        sys.path.insert(0, str(file.parent))
    name = _module_name(file)
    module_before = sys.modules.get(name)
    try:
        return _config_of(_run(file, name), file)
    except ConfigError:
        sys.path[:] = path_before
        if module_before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module_before
        raise


def _check_file(file: Path, given: str | os.PathLike[str]) -> None:
    name = repr(os.fspath(given))
    if file.is_dir():
        raise ConfigError(f"{name} is a folder; expected a Python file that defines {NAME} = {{...}}")
    if not file.exists():
        near = closest(file.name, (other.name for other in file.parent.glob("*.py")) if file.parent.is_dir() else ())
        raise ConfigError(f"no config file at {name}{near}")
    if file.suffix != ".py":
        raise ConfigError(f"{name} does not end in .py; expected a Python file that defines {NAME} = {{...}}")


def _run(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not through the import system: its bytecode cache is stale if the file changed twice within a second.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except Exception as error:
        raise ConfigError(f"{file}{_line(error, file)}: {type(error).__name__}: {error}") from error
    return module


def _module_name(file: Path) -> str:
    """The file's own name if importing that name gives this file, also in a spawned worker; else a unique name."""
    name = file.stem
    if name.isidentifier() and name not in sys.stdlib_module_names:
        importlib.invalidate_caches()
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module without a spec, such as __main__
            spec = None
        if spec is not None and spec.origin is not None and Path(spec.origin).absolute() == file:
            return name
    return unique_name(file)


def unique_name(file: Path) -> str:
    """A module name that no other file gets."""
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"


def _line(error: Exception, file: Path) -> str:
    """The last line of the file in the error's traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _config_of(module: ModuleType, file: Path) -> dict[str, Any]:
    if not hasattr(module, NAME):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(f"{file} defines no {NAME!r}{closest(NAME, names)}; expected {NAME} = {{...}}")
    config = getattr(module, NAME)
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: {NAME} is {shown(config)}; expected a dict: {NAME} = {{...}}")
    return config


def apply_overrides(
    config: dict[str, Any], overrides: Iterable[str], *, keys: Iterable[str] | None = None
) -> dict[str, Any]:
    """A copy of the config with some values replaced.

    >>> apply_overrides({"epochs": 10}, ["epochs=3", "seed=1", "work_dir=runs/x"])
    {'epochs': 3, 'seed': 1, 'work_dir': 'runs/x'}
    >>> apply_overrides({"optimizer": {"class": Adam}}, ["optimizer.args.lr=1e-3"])["optimizer"]["args"]
    {'lr': 0.001}

    A value is a Python literal, or else a string that does not begin with a bracket. A path goes through dicts by key
    and through lists by position: ``debugger.args.debuggers_config.0.name``. A new key is accepted at three places: a
    known key of the settings (``keys``), the ``args`` of a node, and a name in them.
    """
    changed: dict[str, Any] = copy_containers(config)
    known = [*config, *(key_names() if keys is None else keys)]
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path:
            raise ConfigError(
                f"{override!r} is not an override; expected key=value, like epochs=3 or optimizer.args.lr=1e-3"
            )
        _put(changed, path, _literal(text, path), known)
    return changed


def _literal(text: str, path: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if text.strip().startswith(("[", "(", "{")):
            raise ConfigError(
                f"{path}: {text.strip()!r} starts like a Python list, tuple or dict but is not one; "
                f"put quotes around strings, as in {path}=\"['a', 'b']\""
            ) from None
        return text


def _put(root: dict[str, Any], path: str, value: Any, known: list[str]) -> None:
    steps = re.sub(r"\[(\d+)\]", r".\1", path).split(".")  # error messages write the first item of a list as [0]
    holder: Any = root
    for depth in range(len(steps)):
        key = _key(holder, steps, depth, path, known)
        if depth + 1 == len(steps):
            holder[key] = value
        elif isinstance(holder[key], tuple):
            holder[key] = list(holder[key])
        holder = holder[key]


def _key(holder: Any, steps: list[str], depth: int, path: str, known: list[str]) -> Any:
    """The key or position in ``holder`` that a step of the path names; a new key is added."""
    step, at = steps[depth], ".".join(steps[:depth])
    if isinstance(holder, list):
        if not step.isdecimal() or int(step) >= len(holder):
            raise ConfigError(
                f"{path}: {at} is a list of {len(holder)}; expected a position below that, found {step!r}"
            )
        return int(step)
    if not isinstance(holder, dict):
        raise ConfigError(f"{path}: {at} is {shown(holder)}, which has nothing inside; it can only be replaced")
    if step in holder:
        return step
    if step.isdecimal() and int(step) in holder:
        return int(step)
    _check_new(holder, steps, depth, path, known)
    holder[step] = {}  # a new 'args'; replaced if this is the last step
    return step


def _check_new(holder: dict[Any, Any], steps: list[str], depth: int, path: str, known: list[str]) -> None:
    """Refuse a new key where none is accepted."""
    step, last = steps[depth], depth + 1 == len(steps)
    if depth == 0:
        if step not in known:
            raise ConfigError(f"{path}: the config has no key {step!r}{closest(step, known, most=1)}")
        if not last:
            raise ConfigError(f"{path}: this config has no {step!r}, so nothing inside it can be set")
        return
    args_of_a_node = is_node(holder) and step == "args"
    name_in_args = last and steps[depth - 1] == "args"
    if not args_of_a_node and not name_in_args:
        at = ".".join(steps[:depth])
        raise ConfigError(f"{path}: {at} has no {step!r}{closest(step, map(str, holder), most=1)}")
