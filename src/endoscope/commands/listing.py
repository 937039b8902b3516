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
    """One row per capture. Unknown numbers, as of pickle pages, appear as a dash."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("capture", overflow="fold")
    for name in ("pages", "records", "datapoints", "size"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("dropped", justify="right")
    table.add_column("damaged", justify="right")
    for f in facts:
        state = "pickle, not opened" if f["format"] == "pickle" else f["state"]
        table.add_row(
            Text(printable(f["capture"])),
            *(_number(f[name]) for name in ("pages", "records", "datapoints")),
            decimal(f["bytes"]),
            Text(state, style="" if state == "closed" else "yellow"),
            *(Text(_number(f[name]), style="bold red" if f[name] else "") for name in ("dropped", "damaged")),
        )
    return table


def _number(n: int | None) -> str:
    return "-" if n is None else str(n)
