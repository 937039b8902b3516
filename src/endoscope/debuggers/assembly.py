"""From a config to debuggers by name: builds nodes, expands patterns, finds mistakes before the first step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from endoscope.config import build_from_config
from endoscope.debuggers.attachments import check_signature
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.errors import ConfigError, LayerNotFoundError
from endoscope.layers import is_pattern, select


def assemble(debuggers_config: Sequence[Mapping[str, Any]], model: torch.nn.Module) -> dict[str, BaseDebugger]:
    """Every debugger by its name. A layer pattern becomes one debugger per layer, named ``name/layer``."""
    if not isinstance(debuggers_config, (list, tuple)):
        raise ConfigError(f"debuggers_config must be a list, not {type(debuggers_config).__name__}")
    debuggers: dict[str, BaseDebugger] = {}
    for k, entry in enumerate(debuggers_config):
        where = f"debuggers_config[{k}]"
        name = _name(entry, where)
        try:
            for full_name, debugger in _expand(name, entry["debugger_config"], model, where):
                if full_name in debuggers:
                    raise ConfigError(
                        f"{where}.name: there is already a debugger called {full_name!r}; names must differ"
                    )
                debuggers[full_name] = debugger
        except LayerNotFoundError as e:
            raise LayerNotFoundError(f"{where} ({name!r}): {e}") from None
    return debuggers


def _name(entry: Any, where: str) -> str:
    if not isinstance(entry, Mapping) or set(entry) != {"name", "debugger_config"}:
        found = f"the keys {sorted(map(str, entry))}" if isinstance(entry, Mapping) else type(entry).__name__
        raise ConfigError(f"{where} must be a dict with 'name' and 'debugger_config', found {found}")
    name = entry["name"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name must be text, found {name!r}")
    return name


def _expand(name: str, config: Any, model: torch.nn.Module, where: str) -> Iterator[tuple[str, BaseDebugger]]:
    pattern = _layer_pattern(config)
    if pattern is None:
        yield name, _build(config, model, where)
        return
    for layer in select(model, pattern):
        one: Any
        if isinstance(config, Mapping):
            one = {**config, "args": {**config["args"], "layer_name": layer}}
        else:
            one = copy.deepcopy(config)
            one.layer_name = layer
        yield f"{name}/{layer}", _build(one, model, where)


def _layer_pattern(config: Any) -> str | None:
    if isinstance(config, Mapping):
        name = config.get("args", {}).get("layer_name")
    else:
        name = getattr(config, "layer_name", None)
    return name if isinstance(name, str) and is_pattern(name) else None


def _build(config: Any, model: torch.nn.Module, where: str) -> BaseDebugger:
    try:
        _check_class(config)
        debugger = build_from_config(config)
        if isinstance(debugger, BaseDebugger):
            check_signature(debugger)
            _check_layer_name(debugger)
    except ConfigError as e:
        raise type(e)(f"{where}.debugger_config: {e}") from None
    if not isinstance(debugger, BaseDebugger):
        raise ConfigError(f"{where}.debugger_config must build a BaseDebugger, found {type(debugger).__name__}")
    if isinstance(debugger, ForwardDebugger) and isinstance(debugger, BackwardDebugger):
        either = "a debugger is either a ForwardDebugger or a BackwardDebugger"
        raise ConfigError(f"{where}.debugger_config: {type(debugger).__name__} is both; {either}")
    if (layer_name := getattr(debugger, "layer_name", None)) is not None:
        select(model, layer_name)
    check = getattr(debugger, "check", None)
    if callable(check):
        check(model)
    return debugger


def _check_class(config: Any) -> None:
    cls = config.get("class") if isinstance(config, Mapping) else None
    if isinstance(cls, BaseDebugger):
        name = type(cls).__name__
        raise ConfigError(f"'class' is an object; expected the class {name}, with its arguments in 'args'")
    if inspect.isclass(cls) and inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ConfigError(f"{cls.__name__} does not define {missing}")


def _check_layer_name(debugger: BaseDebugger) -> None:
    if not isinstance(debugger, (ForwardDebugger, BackwardDebugger)):
        return
    if not hasattr(debugger, "layer_name"):
        cls = type(debugger).__name__
        raise ConfigError(f"a {cls} has no layer_name; call super().__init__(layer_name) in its __init__")
    name: object = debugger.layer_name
    if not isinstance(name, str):
        kind = type(name).__name__
        raise ConfigError(f"a layer name must be text such as 'backbone.layer4', not {kind}")
