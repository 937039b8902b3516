"""The ``{'class': ..., 'args': {...}}`` nodes of a config: checking and building them.

Checking imports what the config names; building also calls it. Both are for a config that the user wrote, never for the
config of a run that is opened.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from endoscope.errors import ConfigError, closest

_NODE_KEYS = ("class", "args")
_UNBUILT_SUFFIX = "_config"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def build_from_config(config: Any, *, key_path: str = "", **kwargs: Any) -> Any:
    """Build the object that a config node describes; ``kwargs`` join the node's own ``args``.

    >>> build_from_config({"class": complex, "args": {"real": 1}}, imag=2)
    (1+2j)
    >>> build_from_config({"class": "datetime.date", "args": {"year": 2024, "month": 2, "day": 29}})
    datetime.date(2024, 2, 29)
    >>> build_from_config("not a node")
    'not a node'

    Nodes among the ``args``, also inside plain lists, tuples and dicts, are built first. A value under a key that ends
    in ``_config`` is passed on unbuilt, because its owner builds it. The config is never changed: the constructor gets
    copies of its lists and dicts. ``key_path`` is the place of the node in the config, for error messages.
    """
    return _build(config, kwargs, key_path) if is_node(config, key_path) else config


def check_node(config: Any, *, given: Iterable[str] = (), key_path: str = "") -> None:
    """Check classes and argument names like `build_from_config`, without calling anything.

    >>> check_node({"class": complex, "args": {"reel": 1}}, key_path="model")
    Traceback (most recent call last):
    endoscope.errors.ConfigError: model.args.reel: complex takes no such argument; closest: 'real'
    accepted: real, imag

    ``given`` are the argument names that the caller will add. Values under a key that ends in ``_config`` are checked,
    too, but arguments may be missing there, because the owner may add them. A value that is not a node passes.
    """
    if is_node(config, key_path):
        _check(config, dict.fromkeys(given), key_path)


def is_node(value: Any, key_path: str = "") -> bool:
    """Whether `build_from_config` would build ``value``. Raises for a node with a misspelt key.

    >>> is_node({"class": complex, "args": {}}), is_node({"class": "cat", "score": 0.9})
    (True, False)
    """
    if not isinstance(value, dict) or "class" not in value:
        return False
    unknown = [key for key in value if key not in _NODE_KEYS]
    # {'class': 'cat', 'score': 0.9} is data; with a class under 'class' the dict is meant as a node.
    if unknown and callable(value["class"]):
        near = closest(str(unknown[0]), _NODE_KEYS)
        raise ConfigError(f"{_at(key_path, unknown[0])}: a node has the keys 'class' and 'args' only{near}")
    return not unknown


def _build(node: dict[str, Any], kwargs: Mapping[str, Any], path: str) -> Any:
    factory, args = _read(node, kwargs, path)
    _check_arguments(factory, args, path, given=kwargs)
    return factory(**_built_items(args, _at(path, "args")))


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
    """Check the nodes in plain containers, and under ``*_config`` keys those that an owner will build."""
    for where, item, unbuilt in _inside(value, path):
        adds = owner_adds or unbuilt
        # Under a *_config key, a dict with only a string under 'class' may be data.
        if is_node(item, where) and (not adds or callable(item["class"]) or "args" in item):
            _check(item, {}, where, owner_adds=adds)
        else:
            _check_inside(item, where, owner_adds=adds)


def _inside(value: Any, path: str) -> list[tuple[str, Any, bool]]:
    """The items of a plain container: where each stands, the item, and whether it is left unbuilt."""
    if type(value) is dict:
        return [(_at(path, key), item, str(key).endswith(_UNBUILT_SUFFIX)) for key, item in value.items()]
    if type(value) is list or type(value) is tuple:
        return [(f"{path}[{i}]", item, False) for i, item in enumerate(value)]
    return []


def _read(node: dict[str, Any], kwargs: Mapping[str, Any], path: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable of a node, and all arguments for it."""
    factory = _resolve(node["class"], _at(path, "class"))
    path = _at(path, "args")
    args = node.get("args", {})
    if not isinstance(args, dict):
        raise ConfigError(f"{path}: found {_shown(args)}; expected a dict from argument names to values")
    if clash := sorted(args.keys() & kwargs.keys()):
        who = f"the config and the code that builds {_name(factory)}"
        raise ConfigError(f"{_at(path, clash[0])}: given by {who}; remove it from the config")
    return factory, {**args, **kwargs}


def copy_containers(value: Any) -> Any:
    """A copy of plain dicts, lists and tuples that shares everything else."""
    if type(value) is dict:
        return {key: copy_containers(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(copy_containers(item) for item in value)
    return value


def _built(value: Any, path: str) -> Any:
    """``value`` with plain containers copied and nodes built."""
    if is_node(value, path):
        return _build(value, {}, path)
    if type(value) is dict:
        return _built_items(value, path)
    if type(value) is list or type(value) is tuple:
        return type(value)(_built(item, f"{path}[{i}]") for i, item in enumerate(value))
    return value


def _built_items(values: dict[Any, Any], path: str) -> dict[Any, Any]:
    return {
        key: copy_containers(value) if str(key).endswith(_UNBUILT_SUFFIX) else _built(value, _at(path, key))
        for key, value in values.items()
    }


def _resolve(target: Any, path: str) -> Callable[..., Any]:
    factory: object = _import(target, path) if isinstance(target, str) and target.find(".") > 0 else target
    if not callable(factory):
        raise ConfigError(f"{path}: found {_shown(target)}; expected a class or its path, like 'package.module.Name'")
    return factory


def _import(target: str, path: str) -> Any:
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; one of its own imports is missing
        raise ConfigError(f"{path}: no module named {error.name!r}, needed for {target!r}") from None
    if not hasattr(module, name):
        raise ConfigError(f"{path}: module {module_name!r} has no {name!r}{closest(name, dir(module))}")
    return getattr(module, name)


def _check_arguments(
    factory: Callable[..., Any], args: dict[str, Any], path: str, *, given: Mapping[str, Any], partial: bool = False
) -> None:
    """Refuse arguments that the signature does not accept, so that a TypeError raised inside it stays what it is.

    given: those of ``args`` that do not come from the config. partial: whether arguments may be missing.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    try:
        signature.bind_partial(**args) if partial else signature.bind(**args)
    except TypeError as error:
        named = {name: p for name, p in signature.parameters.items() if p.kind in _NAMED}
        unknown = next((key for key in args if not _takes(signature, key)), None)
        if unknown is None:
            problem = f"{_first_missing(named, args, _at(path, 'args'))}: {_name(factory)}: {error}"
        else:
            problem = _unknown_argument(unknown, factory, named, path, given)
        raise ConfigError(f"{problem}\naccepted: {', '.join(named) or 'none'}") from None


def _first_missing(named: Mapping[str, inspect.Parameter], args: dict[str, Any], path: str) -> str:
    missing = [name for name, p in named.items() if p.default is p.empty and name not in args]
    return _at(path, missing[0]) if missing else path


def _unknown_argument(
    unknown: str, factory: Callable[..., Any], named: Iterable[str], path: str, given: Mapping[str, Any]
) -> str:
    if unknown in given:
        return f"{_at(path, 'class')}: {_name(factory)} does not take {unknown!r}, which the caller passes"
    return f"{_at(path, 'args')}.{unknown}: {_name(factory)} takes no such argument{closest(str(unknown), named)}"


def _takes(signature: inspect.Signature, name: str) -> bool:
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _name(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__qualname__", type(factory).__name__))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) or value is None else f"a {type(value).__name__}"
