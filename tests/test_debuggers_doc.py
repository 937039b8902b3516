"""docs/debuggers.md: its code runs, and its listings are what the ready-made debuggers store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import endoscope.debuggers
from endoscope.debuggers import SequentialDebugger

PAGE = Path(__file__).parents[1] / "docs" / "debuggers.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall("```python\n(.*?)```", TEXT, re.DOTALL)
LISTINGS = dict(re.findall(r"### (\w+Debugger)\n.*?```text\n(.*?)```", TEXT, re.DOTALL))
READY_MADE = [n for n in endoscope.debuggers.__all__ if n.endswith("Debugger")]
READY_MADE = [
    n for n in READY_MADE if n not in ("SequentialDebugger", "BaseDebugger", "ForwardDebugger", "BackwardDebugger")
]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of the page define, run from the first to the last."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "debuggers_doc"}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def described(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Tensor):
        yield f"{name:40} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from described(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield f"{name:40} list of {len(value)} {type(value[0]).__name__}"
    else:
        yield f"{name:40} {value if isinstance(value, str) else type(value).__name__}"


def listing(call: str, names: dict[str, Any], folder: str) -> str:
    """The stored keys of the debugger that the first line of a listing builds."""
    name, _, expression = call.partition(" = ")
    debugger = eval(expression, {**vars(endoscope.debuggers)})
    seen = names["watch"](folder, {"name": name, "debugger_config": debugger})
    return "\n".join([call, "", *described(seen[17][name], "")]) + "\n"


def test_every_listing_is_what_is_stored(names: dict[str, Any]) -> None:
    for k, text in enumerate(LISTINGS.values()):
        assert text == listing(text.splitlines()[0], names, f"runs/listing_{k}")


def test_every_ready_made_debugger_has_a_listing() -> None:
    assert sorted(LISTINGS) == sorted(READY_MADE)


def test_the_page_shows_every_base_class() -> None:
    assert len(BLOCKS) == 6
    assert SequentialDebugger.__name__ in BLOCKS[0]
    for base in ("(ForwardDebugger)", "(BackwardDebugger)", "(BaseDebugger)"):
        assert any(base in block for block in BLOCKS)
