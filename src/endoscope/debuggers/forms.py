"""What is known of a debugger's function without calling it: whether it may draw random numbers, and its form.

Asked when hooks are attached. Many debuggers keep a layer's output and do nothing else; the code of such a function
shows it, and the hook then copies the output without calling it.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from endoscope.capturing.snapshot import Form
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.values import PLAIN

_READY_MADE = "endoscope.debuggers."  # where the ready-made debuggers live, which draw nothing, and no user's subclass
_RUN_NOTHING = frozenset((
    "RESUME", "NOP", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_TUPLE",
    "RETURN_VALUE", "RETURN_CONST",
))  # fmt: skip


def may_draw(debugger: BaseDebugger, function: Callable[..., Any]) -> bool:
    """Whether random numbers could be drawn when ``function`` of this debugger is called.

    They cannot by our own debuggers, nor by a function that only puts what it is given into a dict, as the one of a
    debugger that keeps a layer's output: its code runs nothing that is not in it.
    """
    if all(str(getattr(one, "__module__", "")).startswith(_READY_MADE) for one in (type(debugger), function)):
        return False
    plain = plain_function(function)
    return plain is None or not _runs_nothing(plain)


def plain_function(function: Callable[..., Any]) -> FunctionType | None:
    """The function that is called by ``function`` itself, or by a method of it; None for what only looks like one, as a
    proxy or a mock does."""
    plain = function.__func__ if type(function) is MethodType else function
    return plain if type(plain) is FunctionType else None


def _runs_nothing(function: FunctionType) -> bool:
    return all(step.opname in _RUN_NOTHING for step in dis.get_instructions(function))


_OUTPUT = torch.empty(0, device="cpu")
_of_any_tensor: set[CodeType] = set()


def of_any_tensor(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a ``process_stored`` of ours: of any plain tensor it returns the same dict, which holds that tensor once, as
    long as the debugger stays the same."""
    _of_any_tensor.add(function.__code__)  # and not an attribute, which wrappers of it would seem to have
    return function


def form_of(function: Callable[..., Any]) -> Form | None:
    """The dict that ``function(module, input, output)`` returns of any plain tensor; None where that is not known.

    It is known of a function that runs nothing, and of one that is marked with `of_any_tensor`: one call shows it.
    Nothing is known while a tracer such as an IDE's debugger, or a profiler, wants to see every call.
    """
    plain = plain_function(function)
    if plain is None or plain.__defaults__ or plain.__kwdefaults__ or _watched():
        return None
    if plain.__code__ not in _of_any_tensor and not _runs_nothing(plain):
        return None
    try:
        returned = function(object(), object(), _OUTPUT)
    except Exception:  # noqa: BLE001  # it fails when a layer runs, too, and is told then
        return None
    if type(returned) is not dict or set(map(type, returned)) != {str}:
        return None
    rest = {name: value for name, value in returned.items() if value is not _OUTPUT}
    if len(rest) != len(returned) - 1 or not all(type(value) in PLAIN for value in rest.values()):
        return None
    place = next(name for name in returned if name not in rest)
    return _form(tuple(returned), place, tuple((name, type(value), repr(value), value) for name, value in rest.items()))


@lru_cache(256)
def _form(names: tuple[str, ...], place: str, rest: tuple[tuple[str, type, str, Any], ...]) -> Form:
    """The same form for the same dict, so that what the writer knows of it holds when hooks are attached again. Types
    and texts tell 1 from True and 0.0 from -0.0, which are equal."""
    values = {name: value for name, _, _, value in rest}
    return Form({name: _OUTPUT if name == place else values[name] for name in names}, place)


def _watched() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and any(monitoring.get_tool(k) for k in range(6)):
        return True
    return sys.gettrace() is not None or sys.getprofile() is not None
