"""Facts (see `describe`) as a tree for the terminal. Shortened values say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from endoscope.commands.text import printable
from endoscope.render.plain import shortened

MAX_TEXT = 120
MAX_VALUES = 6
MAX_ITEMS = 24
ROUNDED = "numbers are rounded to 6 digits; --json shows them in full"

_NON_FINITE = ("NaN", "Infinity", "-Infinity")


def datapoint_tree(title: str, debuggers: Mapping[str, dict[str, Any]]) -> Tree:
    """One branch per debugger."""
    tree = Tree(Text(title, style="bold"))
    for name, facts in debuggers.items():
        _add(tree, name, facts, "bold cyan")
    return tree


def _add(tree: Tree, name: str, facts: dict[str, Any], style: str = "cyan") -> None:
    label = Text(printable(name), style=style)
    label.append("  ")
    label.append_text(_line(facts))
    branch = tree.add(label)
    items = facts.get("items", {})
    pairs = list(items.items()) if isinstance(items, dict) else [(str(k), v) for k, v in enumerate(items)]
    for key, value in pairs[:MAX_ITEMS]:
        _add(branch, key, value)
    if len(pairs) > MAX_ITEMS:
        branch.add(Text(f"… {len(pairs) - MAX_ITEMS} more; --json shows all", style="dim"))


def _line(facts: dict[str, Any]) -> Text:
    """A value on one line, without the members of a container."""
    kind = printable(facts["type"])
    if "damaged" in facts:
        return Text(f"damaged: {printable(facts['damaged'])}", style="bold red")
    if "dtype" in facts:
        return _tensor(facts)
    if "items" in facts:
        return Text(f"{kind}, {_count(len(facts['items']), 'item')}", style="dim")
    if "values" in facts:
        return _values(facts)
    if "text" in facts:
        return Text.assemble((f"{kind}, {facts['stored']}: ", "dim"), _quoted(facts["text"]))
    if "value" not in facts:  # bytes
        return Text(f"{kind}, {_count(facts['length'], 'byte')}", style="dim")
    return _scalar(facts["value"], kind)


def _tensor(facts: dict[str, Any]) -> Text:
    sparse = f" {facts['layout']}, {facts['stored']} stored" if "layout" in facts else ""
    line = Text(f"{facts['type']} {facts['dtype']} {facts['shape']}{sparse}", style="green")
    if facts["min"] is None:
        line.append("  no values", style="dim")
    else:
        for name in ("min", "mean", "max"):
            line.append(f"  {name} ", style="dim")
            line.append(_number(facts[name]))
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
        line.append_text(_scalar(value, "str" if isinstance(value, str) and value not in _NON_FINITE else ""))
    more = len(values) - MAX_VALUES
    line.append(f", … {more} more]" if more > 0 else "]")
    line.append(f"  {facts['type']} of {len(values)}", style="dim")
    return line


def _scalar(value: Any, kind: str) -> Text:
    if kind == "str" and isinstance(value, str):
        return _quoted(value)
    if value in _NON_FINITE:
        return Text(value, style="bold red")
    if isinstance(value, str):
        return Text.assemble(printable(value), (f"  {kind}", "dim"))
    return Text(_number(value))


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _quoted(text: str) -> Text:
    return Text(f'"{printable(shortened(text, MAX_TEXT))}"')


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# ---------------------------------------------------------------- notes
_NOTES = {"absent": "is absent: ", "failures": "failed: ", "calls": "calls of its layer: "}


def notes_tree(notes: Mapping[str, Any]) -> Tree:
    """Absent values and the reason, failures, and layers that ran more than once."""
    tree = Tree(Text("notes", style="bold"))
    for kind, entries in notes.items():
        for name, entry in entries.items() if isinstance(entries, dict) else [(kind, entries)]:
            text = printable(f"{_NOTES.get(kind, f'{kind}: ')}{entry}")
            tree.add(Text.assemble((printable(name), "cyan"), "  ", (text, "red" if kind == "failures" else "")))
    return tree
