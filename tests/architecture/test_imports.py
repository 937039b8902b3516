"""Dependencies point downwards only: which part of Endoscope may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# The parts of endoscope, from the bottom to the top. A part may import any part of a lower layer.
LAYERS: list[set[str]] = [
    {"errors", "ranks"},
    {"torch_private"},
    {"values", "schedule", "config", "statistics"},
    {"layers", "summaries", "deferred"},
    {"capturing"},
    {"pages", "render", "visualize"},
    {"anatomy", "explain", "runs"},
    {"debuggers"},
    {"health"},
    {"doctor"},
    {"watching", "recording"},
    {"report"},
    {"runners", "integrations", "viewer"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {part: k for k, layer in enumerate(LAYERS) for part in layer}

# What a part may not know although it lies lower.
FORBIDDEN: dict[str, set[str]] = {
    "render": {"capturing"},  # draws values, whoever made them
    "visualize": {"capturing"},
    "runs": {"capturing"},
    # Open a run on a machine that has neither the model nor the user's code.
    "report": {"capturing", "debuggers", "explain", "anatomy"},
    "viewer": {"capturing", "debuggers", "explain", "anatomy"},
    "debuggers": {"runs", "anatomy", "render", "visualize"},
}

# One module may know one module more.
EXCEPTIONS = {
    ("endoscope.runs.run", "endoscope.report.notebook"),  # what a notebook shows of a Run
}


def imported_names(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Every name that ``source`` imports, anywhere in it, in full: ``from a.b import c`` is ``a.b.c``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                parents = module.split(".")
                base = parents[: len(parents) - node.level + is_package] + base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What ``module`` of endoscope imports against the table, as sentences."""
    if module == "endoscope":
        return []  # the public face knows everybody
    part = module.split(".")[1]
    if part not in LAYER_OF:
        return [f"{module}: endoscope.{part} stands in no layer; decide what it may know"]
    found = []
    for name in imported_names(source, module, is_package=is_package):
        top, *rest = name.split(".")
        if top == "debuggers":
            found.append(f"{module} imports {name}: import endoscope.debuggers instead")
        elif name == "endoscope.__version__" or top != "endoscope":
            continue
        elif not rest or rest[0] not in LAYER_OF:
            found.append(f"{module} imports {name}: import from the module that owns the name")
        elif not may_import(part, rest[0]) and not is_exception(module, name):
            found.append(f"{module} imports {name}: {part} may not know {rest[0]}")
    return found


def may_import(part: str, other: str) -> bool:
    return other == part or (LAYER_OF[other] < LAYER_OF[part] and other not in FORBIDDEN.get(part, ()))


def is_exception(module: str, name: str) -> bool:
    return any(module == who and f"{name}.".startswith(f"{what}.") for who, what in EXCEPTIONS)


def reexport_violations(source: str, module: str) -> list[str]:
    """What a module of src/debuggers holds besides imports from endoscope and ``__all__``, as sentences."""
    found = [
        f"{module} imports {name}: src/debuggers imports only endoscope"
        for name in imported_names(source, module)
        if name.split(".")[0] not in ("endoscope", "__future__")
    ]
    for node in ast.parse(source).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (is_docstring or is_all or isinstance(node, ast.Import | ast.ImportFrom)):
            found.append(f"{module}, line {node.lineno}: src/debuggers only re-exports")
    return found


def modules_of(package: str) -> list[tuple[str, Path]]:
    paths = sorted((SRC / package).rglob("*.py"))
    return [(".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"), path) for path in paths]


def named(modules: list[tuple[str, Path]]) -> list[object]:
    return [pytest.param(module, path, id=module) for module, path in modules]


@pytest.mark.parametrize(("module", "path"), named(modules_of("endoscope")))
def test_endoscope_imports_downwards_only(module: str, path: Path) -> None:
    assert violations(path.read_text(), module, is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(("module", "path"), named(modules_of("debuggers")))
def test_the_short_import_paths_only_reexport(module: str, path: Path) -> None:
    assert reexport_violations(path.read_text(), module) == []


def test_the_modules_are_found() -> None:
    assert "endoscope" in dict(modules_of("endoscope"))
    assert "endoscope.errors" in dict(modules_of("endoscope"))
    assert "debuggers.wrappers.sequential_debugger" in dict(modules_of("debuggers"))


def test_a_part_stands_in_one_layer() -> None:
    assert len(LAYER_OF) == sum(map(len, LAYERS))
    assert set(FORBIDDEN) <= set(LAYER_OF)
    assert set().union(*FORBIDDEN.values()) <= set(LAYER_OF)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("endoscope.errors", "from endoscope.values import nbytes"),
        ("endoscope.values", "from endoscope.layers import select"),
        ("endoscope.layers", "import endoscope.capturing.hooks"),
        ("endoscope.config", "from endoscope.debuggers.base_debugger import BaseDebugger"),
        ("endoscope.pages.store", "from endoscope.debuggers import base_debugger"),
        ("endoscope.pages.store", "from ..debuggers import base_debugger"),
        ("endoscope.pages.store", "def f():\n    import endoscope.debuggers.forward_debugger"),
        ("endoscope.capturing.session", "from endoscope.debuggers.base_debugger import BaseDebugger"),
        ("endoscope.render.images", "from endoscope.pages.reader import load_debug_outputs"),
        ("endoscope.render.images", "from endoscope.capturing.snapshot import snapshot"),
        ("endoscope.debuggers.gradcam", "from endoscope.runs import Run"),
        ("endoscope.report.html", "from endoscope.capturing.snapshot import snapshot"),
        ("endoscope.explain.gradcam", "from endoscope.debuggers.forward_debugger import ForwardDebugger"),
        ("endoscope.anatomy.flops", "from endoscope.explain import gradcam"),
        ("endoscope.health.manager", "from endoscope.report.text import render"),
        ("endoscope.visualize.filters", "from endoscope.report.html import render"),
        ("endoscope.runners.loops.trainer", "from endoscope.viewer import app"),
        ("endoscope.viewer.app", "from endoscope.debuggers import base_debugger"),
        ("endoscope.viewer.app", "from endoscope.capturing.hooks import HookSet"),
        ("endoscope.viewer.app", "from endoscope.explain.gradcam import GradCAM"),
        ("endoscope.viewer.app", "from endoscope.runners.loops.evaluator import Evaluator"),
        ("endoscope.runs.run", "from endoscope.runners.config.settings import Settings"),
        ("endoscope.runs.run", "from endoscope.debuggers.base_debugger import BaseDebugger"),
        ("endoscope.runs.run", "from endoscope.capturing.hooks import HookSet"),
        ("endoscope.pages.store", "from endoscope.runs import layout"),
        ("endoscope.pages.store", "if TYPE_CHECKING:\n    from endoscope.cli import main"),
        ("endoscope.layers", "from endoscope import ForwardDebugger"),
        ("endoscope.layers", "import endoscope"),
        ("endoscope.layers", "from debuggers.forward_debugger import ForwardDebugger"),
        ("endoscope.newcomer", ""),
    ],
)
def test_twin_a_violation_is_reported(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


def test_twin_a_relative_import_in_a_package_is_followed() -> None:
    assert violations("from .. import cli", "endoscope.pages", is_package=True) == [
        "endoscope.pages imports endoscope.cli: pages may not know cli"
    ]
    assert violations("from . import writer", "endoscope.pages", is_package=True) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("endoscope.values", "import torch\nfrom endoscope.errors import EndoscopeError"),
        ("endoscope.capturing.hooks", "from . import window"),
        ("endoscope.debuggers.gradcam", "from endoscope.explain.gradcam import GradCAM"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages.store import PageStore"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages import store"),
        ("endoscope.viewer.app", "from endoscope.pages.reader import load_debug_outputs"),
        ("endoscope.viewer.app", "from endoscope.runs.run import Run"),
        ("endoscope.runners.loops.trainer", "from endoscope.runs import layout"),
        ("endoscope.cli", "from endoscope import __version__"),
    ],
)
def test_twin_what_the_design_allows_is_not_reported(module: str, source: str) -> None:
    assert violations(source, module) == []


@pytest.mark.parametrize(
    "source",
    ["import torch", "from debuggers import base_debugger", "class Debugger: ...", "def f(): ...", "x = 1"],
)
def test_twin_more_than_a_reexport_is_reported(source: str) -> None:
    assert len(reexport_violations(source, "debuggers.base_debugger")) == 1
