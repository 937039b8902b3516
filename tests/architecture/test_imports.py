"""Dependencies point downwards only: which part of Endoscope may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

FOUNDATION = {"errors", "values", "tensors", "layers", "schedule", "config", "randomness", "calling"}
FOUNDATION |= {"statistics", "summaries", "threads"}
CAPTURE = {"debuggers", "pages", "anatomy", "explain"}
VERDICT = {"health", "doctor"}
OUTPUT = {"report", "visualize"}
BELOW_COMPOSERS = FOUNDATION | {"hooks", "runs"} | CAPTURE | VERDICT | OUTPUT

# Each part of endoscope, and the parts that it may know besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "values": {"errors"},
    "schedule": {"errors"},
    "config": {"errors"},
    "randomness": set(),
    "threads": {"randomness"},
    "calling": set(),
    "tensors": {"errors", "values"},
    "layers": {"errors", "values", "tensors"},
    "statistics": {"errors", "values", "tensors", "layers"},
    "summaries": {"errors", "values", "statistics"},
    "hooks": FOUNDATION,
    "pages": FOUNDATION | {"hooks"},
    # What a run left, read by those who wrote it and by those who show it.
    "runs": FOUNDATION | {"pages"},
    "anatomy": FOUNDATION | {"hooks"},
    "explain": FOUNDATION | {"hooks"},
    "debuggers": FOUNDATION | {"hooks", "explain"},
    "health": FOUNDATION | {"hooks", "doctor"} | CAPTURE,
    "doctor": FOUNDATION | {"hooks", "health"} | CAPTURE,
    "visualize": FOUNDATION | {"hooks"} | CAPTURE | VERDICT,
    "report": FOUNDATION | {"hooks", "visualize", "runs"} | CAPTURE | VERDICT,
    "runners": BELOW_COMPOSERS,
    "integrations": BELOW_COMPOSERS | {"runners"},
    # Opens a run on a machine that has neither the model nor the user's code.
    "viewer": BELOW_COMPOSERS - {"debuggers", "hooks", "explain"},
    "commands": BELOW_COMPOSERS | {"runners", "integrations", "viewer"},
    "cli": BELOW_COMPOSERS | {"runners", "integrations", "viewer", "commands"},
    "__main__": {"cli"},
}

# One module may know one module more: the composer joins the debuggers with the page writer.
EXCEPTIONS = {("endoscope.debuggers.wrappers.sequential_debugger", "endoscope.pages.store")}


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
    if part not in MAY_IMPORT:
        return [f"{module}: endoscope.{part} has no row in MAY_IMPORT; decide what it may know"]
    found = []
    for name in imported_names(source, module, is_package=is_package):
        top, *rest = name.split(".")
        if top == "debuggers":
            found.append(f"{module} imports {name}: import endoscope.debuggers instead")
        elif name == "endoscope.__version__" or top != "endoscope":
            continue
        elif not rest or rest[0] not in MAY_IMPORT:
            found.append(f"{module} imports {name}: import from the module that owns the name")
        elif rest[0] != part and rest[0] not in MAY_IMPORT[part] and not is_exception(module, name):
            found.append(f"{module} imports {name}: {part} may not know {rest[0]}")
    return found


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


def test_the_table_points_downwards_only() -> None:
    peers = {("health", "doctor"), ("doctor", "health")}
    rows = list(MAY_IMPORT)
    upwards = [(part, other) for part in rows for other in MAY_IMPORT[part] if part in MAY_IMPORT[other]]
    assert set(upwards) == peers
    assert {other for others in MAY_IMPORT.values() for other in others} <= set(rows)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("endoscope.errors", "from endoscope.tensors import nbytes"),
        ("endoscope.tensors", "from endoscope.layers import select"),
        ("endoscope.layers", "import endoscope.hooks"),
        ("endoscope.config", "from endoscope.debuggers.base_debugger import BaseDebugger"),
        ("endoscope.pages.store", "from endoscope.debuggers import base_debugger"),
        ("endoscope.pages.store", "from ..debuggers import base_debugger"),
        ("endoscope.pages.store", "def f():\n    import endoscope.debuggers.forward_debugger"),
        ("endoscope.debuggers.gradcam", "from endoscope.pages.store import PageStore"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages.reader import load_debug_outputs"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages import writer_of_other_things"),
        ("endoscope.explain.gradcam", "from endoscope.debuggers.forward_debugger import ForwardDebugger"),
        ("endoscope.anatomy.flops", "from endoscope.explain import gradcam"),
        ("endoscope.health.manager", "from endoscope.report.text import render"),
        ("endoscope.visualize.filters", "from endoscope.report.html import render"),
        ("endoscope.runners.trainer", "from endoscope.viewer import app"),
        ("endoscope.viewer.app", "from endoscope.debuggers import base_debugger"),
        ("endoscope.viewer.app", "from endoscope.hooks import HookSet"),
        ("endoscope.viewer.app", "from endoscope.explain.gradcam import GradCAM"),
        ("endoscope.viewer.app", "from endoscope.runners.evaluator import Evaluator"),
        ("endoscope.runs.run", "from endoscope.runners.settings import Settings"),
        ("endoscope.runs.run", "from endoscope.debuggers.base_debugger import BaseDebugger"),
        ("endoscope.runs.run", "from endoscope.hooks import HookSet"),
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
        ("endoscope.tensors", "import torch\nfrom endoscope.errors import EndoscopeError"),
        ("endoscope.hooks", "from . import layers"),
        ("endoscope.debuggers.gradcam", "from endoscope.explain.gradcam import GradCAM"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages.store import PageStore"),
        ("endoscope.debuggers.wrappers.sequential_debugger", "from endoscope.pages import store"),
        ("endoscope.viewer.app", "from endoscope.pages.reader import load_debug_outputs"),
        ("endoscope.viewer.app", "from endoscope.runs.run import Run"),
        ("endoscope.runners.trainer", "from endoscope.runs import layout"),
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
