"""Facts (see `describe`) as a tree for the terminal. What does not fit is shortened, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from endoscope.commands.text import printable

MAX_TEXT = 120
MAX_VALUES = 6
MAX_ITEMS = 24
ROUNDED = "numbers are rounded to 6 digits; --json gives them in full"

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def datapoint_tree(title: str, debuggers: Mapping[str, dict[str, Any]]) -> Tree:
    """One branch a debugger."""
    tree = Tree(Text(title, style="bold"))
    for name, facts in debuggers.items():
        _grow(tree, name, facts, "bold cyan")
    return tree


def _grow(tree: Tree, name: str, facts: dict[str, Any], style: str = "cyan") -> None:
    label = Text(printable(name), style=style)
    label.append("  ")
    label.append_text(one_line(facts))
    branch = tree.add(label)
    items = facts.get("items")
    if not items:
        return
    named = list(items.items()) if isinstance(items, dict) else [(str(k), v) for k, v in enumerate(items)]
    for key, value in named[:MAX_ITEMS]:
        _grow(branch, key, value)
    if len(named) > MAX_ITEMS:
        branch.add(Text(f"… {len(named) - MAX_ITEMS} more, all of them with --json", style="dim"))


def one_line(facts: dict[str, Any]) -> Text:
    """What a value is, without what is inside it."""
    kind = facts["type"]
    if "damaged" in facts:
        return Text(f"damaged: {printable(facts['damaged'])}", style="bold red")
    if kind in ("tensor", "array"):
        return _array(facts)
    if "items" in facts:
        return Text(f"{printable(kind)}, {_count(len(facts['items']), 'item')}", style="dim")
    if "values" in facts:
        return _values(facts)
    if "text" in facts:
        return Text.assemble((f"{printable(kind)}, {facts['stored']}: ", "dim"), _shortened(facts["text"]))
    if "value" not in facts:  # bytes
        return Text(f"{kind}, {_count(facts['length'], 'byte')}", style="dim")
    return _scalar(facts["value"], kind)


def _array(facts: dict[str, Any]) -> Text:
    sparse = f" {facts['layout']}, {facts['stored']} stored" if "layout" in facts else ""
    line = Text(f"{facts['type']} {facts['dtype']} {facts['shape']}{sparse}", style="green")
    if facts["min"] is not None:
        for name in ("min", "mean", "max"):
            line.append(f"  {name} ", style="dim")
            line.append(f"{facts[name]:.6g}" if isinstance(facts[name], float) else str(facts[name]))
    else:
        line.append("  no values", style="dim")
    if facts["non_finite"]:
        line.append(f"  {facts['non_finite']} non-finite", style="bold red")
    if facts["over"] != "values" and facts["min"] is not None:
        line.append(f"  (over the {facts['over']})", style="dim")
    return line


def _values(facts: dict[str, Any]) -> Text:
    values = facts["values"]
    line = Text("[")
    for k, value in enumerate(values[:MAX_VALUES]):
        line.append(", " if k else "")
        line.append_text(_scalar(value, "str" if isinstance(value, str) and value not in _NOT_FINITE else ""))
    left = len(values) - MAX_VALUES
    line.append(f", … {left} more]" if left > 0 else "]")
    line.append(f"  {facts['type']} of {len(values)}", style="dim")
    return line


def _scalar(value: Any, kind: str) -> Text:
    if kind == "str" and isinstance(value, str):
        return _shortened(value)
    if value in _NOT_FINITE:
        return Text(value, style="bold red")
    if isinstance(value, str):
        return Text.assemble(printable(value), (f"  {printable(kind)}", "dim"))
    return Text(f"{value:.6g}" if isinstance(value, float) else str(value))


def _shortened(text: str) -> Text:
    if len(text) <= MAX_TEXT:
        return Text(f'"{printable(text)}"')
    return Text.assemble(f'"{printable(text[:MAX_TEXT])}…"', (f"  shortened from {len(text)} characters", "dim"))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# ---------------------------------------------------------------- notes
_SAID = {"absent": "is absent: ", "failures": "failed: ", "calls": "calls of its layer: "}


def notes_tree(notes: Mapping[str, Any]) -> Tree:
    """What is absent and why, what failed, and which layers ran more than once."""
    tree = Tree(Text("notes", style="bold"))
    for kind, held in notes.items():
        for name, what in held.items() if isinstance(held, dict) else [(kind, held)]:
            said = printable(f"{_SAID.get(kind, f'{kind}: ')}{what}")
            tree.add(Text.assemble((printable(name), "cyan"), "  ", (said, "red" if kind == "failures" else "")))
    return tree
