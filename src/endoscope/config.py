"""The ``{'class': ..., 'args': {...}}`` nodes of a config: checked without building, and built.

Checking imports what the config names, building also calls it: for configs that the user wrote, never for a run that
was opened.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from endoscope.errors import ConfigError, closest

_NODE_KEYS = ("class", "args")
_UNBUILT_SUFFIX = "_config"


def build_from_config(config: Any, *, key_path: str = "", **kwargs: Any) -> Any:
    """Build the object that a config node describes; ``kwargs`` join the node's own ``args``.

    >>> build_from_config({"class": complex, "args": {"real": 1}}, imag=2)
    (1+2j)
    >>> build_from_config({"class": "datetime.date", "args": {"year": 2024, "month": 2, "day": 29}})
    datetime.date(2024, 2, 29)
    >>> build_from_config("no node")
    'no node'

    Nodes among the ``args``, also inside plain lists, tuples and dicts, are built first. What stands under a key that
    ends in ``_config`` is handed over unbuilt, because its owner builds it. The config itself is never changed: the
    constructor is given copies of its lists and dicts. ``key_path`` is where the node stands in the whole config, so
    that an error can name it: ``optimizer.args.lr``.
    """
    return _build(config, kwargs, key_path) if is_node(config, key_path) else config


def check_node(config: Any, *, given: Iterable[str] = (), key_path: str = "") -> None:
    """Find what `build_from_config` would refuse, without calling anything: classes, and the names of arguments.

    >>> check_node({"class": complex, "args": {"reel": 1}}, key_path="model")
    Traceback (most recent call last):
    endoscope.errors.ConfigError: model.args.reel: complex takes no such argument; closest: 'real'
    accepted: real, imag

    ``given`` are the names that will be passed to `build_from_config` beside the node. What stands under a key that
    ends in ``_config`` is looked at as well; only arguments that are missing there are no mistake, because its owner
    may add them. What is no node passes.
    """
    if is_node(config, key_path):
        _check(config, dict.fromkeys(given), key_path)


def is_node(value: Any, key_path: str = "") -> bool:
    """Whether `build_from_config` would build ``value``; a node with a misspelt key is an error.

    >>> is_node({"class": complex, "args": {}}), is_node({"class": "cat", "score": 0.9})
    (True, False)
    """
    if not isinstance(value, dict) or "class" not in value:
        return False
    unknown = [key for key in value if key not in _NODE_KEYS]
    # With a class under 'class' the dict can only be meant as a node; {'class': 'cat', 'score': 0.9} is data.
    if unknown and callable(value["class"]):
        near = closest(str(unknown[0]), _NODE_KEYS)
        raise ConfigError(f"{_at(key_path, unknown[0])}: a node has the keys 'class' and 'args' only{near}")
    return not unknown


def _build(node: dict[str, Any], kwargs: Mapping[str, Any], path: str) -> Any:
    factory, args = _read(node, kwargs, path)
    _check_arguments(factory, args, path, given=kwargs)
    path = _at(path, "args")
    return factory(**_items(args, path, build=True))


def _check(node: dict[str, Any], kwargs: Mapping[str, Any], path: str, *, owner_adds: bool = False) -> None:
    try:
        factory, args = _read(node, kwargs, path)
    except ImportError as error:
        where = _at(path, "class")
        raise ConfigError(f"{where}: {node['class']!r} cannot be imported: {_one_line(error)}") from error
    if missing := sorted(getattr(factory, "__abstractmethods__", ())):
        raise ConfigError(f"{_at(path, 'class')}: {_name(factory)} is abstract; it lacks {', '.join(missing)}")
    _check_arguments(factory, args, path, given=kwargs, partial=owner_adds)
    _check_inside(args, _at(path, "args"), owner_adds=owner_adds)


def _check_inside(value: Any, path: str, *, owner_adds: bool) -> None:
    """Check the nodes in the plain containers that building would walk, and in those that an owner will build."""
    if type(value) is dict:
        inside = [(_at(path, key), item, str(key).endswith(_UNBUILT_SUFFIX)) for key, item in value.items()]
    elif type(value) is list or type(value) is tuple:
        inside = [(f"{path}[{i}]", item, False) for i, item in enumerate(value)]
    else:
        return
    for where, item, unbuilt in inside:
        adds = owner_adds or unbuilt
        # Under a *_config key a dict with a text under 'class' alone may as well be data.
        if is_node(item, where) and (not adds or callable(item["class"]) or "args" in item):
            _check(item, {}, where, owner_adds=adds)
        else:
            _check_inside(item, where, owner_adds=adds)


def _read(node: dict[str, Any], kwargs: Mapping[str, Any], path: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What to call, and all the arguments for it."""
    factory = _resolve(node["class"], _at(path, "class"))
    path = _at(path, "args")
    args = node.get("args", {})
    if not isinstance(args, dict):
        raise ConfigError(f"{path}: found {_shown(args)}; expected a dict from argument names to values")
    if clash := sorted(args.keys() & kwargs.keys()):
        who = f"the config and the code that builds {_name(factory)}"
        raise ConfigError(f"{_at(path, clash[0])}: given by {who}; remove it from the config")
    return factory, {**args, **kwargs}


def _value(value: Any, path: str, *, build: bool) -> Any:
    """``value`` with its plain containers copied, and its nodes built where ``build`` says so."""
    if build and is_node(value, path):
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


def _check_arguments(
    factory: Callable[..., Any], args: dict[str, Any], path: str, *, given: Mapping[str, Any], partial: bool = False
) -> None:
    """Refuse arguments that the signature does not accept, so that a TypeError from the body stays the body's own.

    ``given`` are those of ``args`` that do not come from the config. With ``partial``, arguments may be missing.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    try:
        signature.bind_partial(**args) if partial else signature.bind(**args)
    except TypeError as error:
        parameters = signature.parameters.values()
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        unknown = [key for key in args if key not in named]
        missing = [name for name, p in named.items() if p.default is p.empty and name not in args]
        at = _at(path, "args")
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            problem = f"{_at(at, unknown[0])}: {_name(factory)} takes no such argument{closest(str(unknown[0]), named)}"
            if unknown[0] in given:
                problem = f"{_at(path, 'class')}: {_name(factory)} does not take {unknown[0]!r}, which it is given here"
        else:
            problem = f"{_at(at, missing[0]) if missing else at}: {_name(factory)}: {error}"
        raise ConfigError(f"{problem}\naccepted: {', '.join(named) or 'none'}") from None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _name(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__qualname__", type(factory).__name__))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) or value is None else f"a {type(value).__name__}"
