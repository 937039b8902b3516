"""The ``{'class': ..., 'args': {...}}`` nodes of a config, and what is built from them.

Building imports and calls what the config names: for configs that the user wrote, never for a run that was opened.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from endoscope.errors import ConfigError, closest

_NODE_KEYS = ("class", "args")
_UNBUILT_SUFFIX = "_config"


def build_from_config(config: Any, **kwargs: Any) -> Any:
    """Build the object that a config node describes; ``kwargs`` join the node's own ``args``.

    >>> build_from_config({"class": complex, "args": {"real": 1}}, imag=2)
    (1+2j)
    >>> build_from_config({"class": "datetime.date", "args": {"year": 2024, "month": 2, "day": 29}})
    datetime.date(2024, 2, 29)
    >>> build_from_config("no node")
    'no node'

    Nodes among the ``args``, also inside plain lists, tuples and dicts, are built first. What stands under a key that
    ends in ``_config`` is handed over unbuilt, because its owner builds it. The config itself is never changed: the
    constructor is given copies of its lists and dicts.
    """
    return _build(config, kwargs, "") if _is_node(config, "") else config


def _is_node(value: Any, path: str) -> bool:
    if not isinstance(value, dict) or "class" not in value:
        return False
    unknown = [key for key in value if key not in _NODE_KEYS]
    # With a class under 'class' the dict can only be meant as a node; {'class': 'cat', 'score': 0.9} is data.
    if unknown and callable(value["class"]):
        near = closest(str(unknown[0]), _NODE_KEYS)
        raise ConfigError(f"{_at(path, unknown[0])}: a node has the keys 'class' and 'args' only{near}")
    return not unknown


def _build(node: dict[str, Any], kwargs: Mapping[str, Any], path: str) -> Any:
    factory = _resolve(node["class"], _at(path, "class"))
    path = _at(path, "args")
    args = node.get("args", {})
    if not isinstance(args, dict):
        raise ConfigError(f"{path}: found {_shown(args)}; expected a dict from argument names to values")
    if clash := sorted(args.keys() & kwargs.keys()):
        who = f"the config and the code that builds {_name(factory)}"
        raise ConfigError(f"{_at(path, clash[0])}: given by {who}; remove it from the config")
    args = {**args, **kwargs}
    _check_arguments(factory, args, path)
    return factory(**_items(args, path, build=True))


def _value(value: Any, path: str, *, build: bool) -> Any:
    """``value`` with its plain containers copied, and its nodes built where ``build`` says so."""
    if build and _is_node(value, path):
        return _build(value, {}, path)
    if type(value) is dict:
        return _items(value, path, build=build)
    if type(value) is list or type(value) is tuple:
        return type(value)(_value(item, f"{path}[{i}]", build=build) for i, item in enumerate(value))
    return value


def _items(values: dict[Any, Any], path: str, *, build: bool) -> dict[Any, Any]:
    return {
        key: _value(value, _at(path, key), build=build and not str(key).endswith(_UNBUILT_SUFFIX))
        for key, value in values.items()
    }


def _resolve(target: Any, path: str) -> Callable[..., Any]:
    found: object = _import(target, path) if isinstance(target, str) and target.find(".") > 0 else target
    if not callable(found):
        raise ConfigError(f"{path}: found {_shown(target)}; expected a class or its path, like 'package.module.Name'")
    return found


def _import(target: str, path: str) -> Any:
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists and misses one of its own imports
        raise ConfigError(f"{path}: no module named {error.name!r}, needed for {target!r}") from None
    if not hasattr(module, name):
        raise ConfigError(f"{path}: module {module_name!r} has no {name!r}{closest(name, dir(module))}")
    return getattr(module, name)


def _check_arguments(factory: Callable[..., Any], args: dict[str, Any], path: str) -> None:
    """Refuse arguments that the signature does not accept, so that a TypeError from the body stays the body's own."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    try:
        signature.bind(**args)
    except TypeError as error:
        parameters = signature.parameters.values()
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        unknown = [key for key in args if key not in named]
        missing = [name for name, p in named.items() if p.default is p.empty and name not in args]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            near = closest(str(unknown[0]), named)
            problem = f"{_at(path, unknown[0])}: {_name(factory)} takes no such argument{near}"
        else:
            problem = f"{_at(path, missing[0]) if missing else path}: {_name(factory)}: {error}"
        raise ConfigError(f"{problem}\naccepted: {', '.join(named) or 'none'}") from None


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _name(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__qualname__", type(factory).__name__))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) or value is None else f"a {type(value).__name__}"
