"""The table of captures: facts (see `capture_facts`) as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from endoscope.commands.text import printable


def capture_table(facts: Sequence[dict[str, Any]]) -> Table:
    """One row a capture; what is not known of an unopened one stays open as a dash."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("capture", overflow="fold")
    for name in ("pages", "records", "datapoints", "size"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("dropped", justify="right")
    table.add_column("damaged", justify="right")
    for f in facts:
        table.add_row(
            Text(printable(f["capture"])),
            *(_number(f[name]) for name in ("pages", "records", "datapoints")),
            decimal(f["bytes"]),
            _state(f),
            _alarming(f["dropped"]),
            _alarming(f["damaged"]),
        )
    return table


def _number(n: int | None) -> str:
    return "-" if n is None else str(n)


def _alarming(n: int | None) -> Text:
    return Text(_number(n), style="bold red" if n else "")


def _state(facts: dict[str, Any]) -> Text:
    if facts["format"] == "pickle":
        return Text("pickle, not opened", style="yellow")
    return Text(facts["state"], style="" if facts["state"] == "closed" else "yellow")
