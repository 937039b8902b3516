"""The public surface: a name is added or removed on purpose, here and in the docs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

import pytest

import endoscope

PUBLIC = [
    "BackwardDebugger",
    "BaseDebugger",
    "EndoscopeError",
    "ForwardDebugger",
    "SequentialDebugger",
    "__version__",
    "build_from_config",
    "capture",
    "get_layer_by_name",
    "load_debug_outputs",
    "per_datapoint",
    "whole_batch",
]

SHORT_PATHS = {
    "debuggers": ["BackwardDebugger", "BaseDebugger", "ForwardDebugger", "SequentialDebugger"],
    "debuggers.base_debugger": ["BaseDebugger"],
    "debuggers.forward_debugger": ["ForwardDebugger"],
    "debuggers.backward_debugger": ["BackwardDebugger"],
    "debuggers.wrappers": ["SequentialDebugger"],
    "debuggers.wrappers.sequential_debugger": ["SequentialDebugger"],
    "debuggers.utils": ["apply_tensor_op", "get_layer_by_name"],
}


def test_the_public_names_are_these() -> None:
    assert endoscope.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    value = getattr(endoscope, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(endoscope)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'endoscope' has no attribute 'ForwardDebuger'"):
        endoscope.ForwardDebuger  # noqa: B018


@pytest.mark.parametrize("module", SHORT_PATHS)
def test_the_short_import_paths_hand_out_the_same_objects(module: str) -> None:
    short = importlib.import_module(module)
    assert short.__all__ == SHORT_PATHS[module]
    for name in short.__all__:
        value = getattr(short, name)
        assert value is getattr(importlib.import_module(value.__module__), name)
        assert value.__module__.startswith("endoscope.")


# ---------------------------------------------------------------- names of modules
SRC = Path(endoscope.__file__).parent


def clashes(modules: Iterable[str], names: Iterable[str]) -> set[str]:
    """The modules of endoscope, at any depth, whose own name is a public name."""
    public = set(names)
    return {module for module in modules if module.rpartition(".")[2] in public}


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing a submodule binds it in its package: ``endoscope.capture`` would become a module."""
    paths = [path.relative_to(SRC).with_suffix("") for path in SRC.rglob("*.py")]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    assert {"capturing.hooks", "pages.reader", "capturing"} <= {*modules}
    assert clashes(modules, endoscope.__all__) == set()


def test_twin_a_clash_is_noticed_at_any_depth() -> None:
    modules = ["capturing", "capture", "pages.per_datapoint", "watching"]
    assert clashes(modules, ["capture", "watch", "per_datapoint"]) == {"capture", "pages.per_datapoint"}
