"""What Endoscope ships of a kind, found by looking: a new class meets its contract without being listed anywhere."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import sys

import pytest


def shipped(base: type, package: str) -> list[type]:
    """Every concrete subclass of ``base`` that is defined in ``package``, by name."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        importlib.import_module(module.name)
    classes, waiting = set(), [base]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if f"{cls.__module__}.".startswith(f"{package}.") and not inspect.isabstract(cls):
            classes.add(cls)
    return sorted(classes, key=lambda cls: cls.__name__)


def check_cases(classes: list[type], cases: object, where: str) -> None:
    """A class without a case is an error that says where to add one."""
    names, listed = {cls.__name__ for cls in classes}, set(cases)  # type: ignore[call-overload]
    assert names == listed, f"add to (or remove from) {where}: {sorted(names ^ listed)}"


def run_docstring(cls: type) -> None:
    """The docstring has an example, and it gives what it says. Examples with made-up names are left out."""
    assert cls.__doc__, f"{cls.__name__} has no docstring"
    assert ">>> " in cls.__doc__, f"the docstring of {cls.__name__} has no example"
    names = dict(vars(sys.modules[cls.__module__]))
    tests = doctest.DocTestFinder(recurse=False).find(cls, cls.__name__, globs=names)
    for test in tests:
        results: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=results.append)
        if results:
            pytest.fail("".join(results))
