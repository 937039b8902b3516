"""Checking captures byte by byte: the result as facts and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.filesize import decimal

from endoscope.commands.captures import Capture, capture_facts, reading
from endoscope.commands.console import progress
from endoscope.commands.text import printable
from endoscope.pages.verify import verify_folder


def check_captures(captures: Sequence[Capture]) -> tuple[dict[str, Any], list[str], int]:
    """Read and verify every byte, with a progress line on a terminal; returns facts, lines of text and exit code."""
    all_facts: list[dict[str, Any]] = []
    lines: list[str] = []
    for capture in progress(captures, "checking captures"):
        facts = capture_facts(capture)
        if capture.is_pickle:
            facts |= {"checked": False, "damage": None}
            lines.append(f"{printable(capture.name)}: not checked, because opening pickle pages can run code")
        else:
            with reading(capture.folder):
                damage = verify_folder(capture.folder)
            as_json = [{**asdict(d), "indices": list(d.indices)} for d in damage]
            facts |= {"checked": True, "damaged": len(damage), "damage": as_json}
            lines += [printable(f"{capture.name}/{d}") for d in damage]
        all_facts.append(facts)
    checked = [facts for facts in all_facts if facts["checked"]]
    damaged = sum(facts["damaged"] for facts in checked)
    exit_code, result = 0, "no damage"
    if damaged:
        exit_code, result = 1, f"damaged: {damaged}"
    elif not checked:
        exit_code, result = 2, "nothing was checked"
    return {"captures": all_facts, "damaged": damaged}, [*lines, f"{_totals(checked)}: {result}"], exit_code


def _totals(checked: list[dict[str, Any]]) -> str:
    pages, datapoints, nbytes = (sum(facts[name] for facts in checked) for name in ("pages", "datapoints", "bytes"))
    unfinished = sum(facts["state"] == "unfinished" for facts in checked)
    note = f" ({unfinished} unfinished, checked as far as written)" if unfinished else ""
    return f"captures {len(checked)}{note}, pages {pages}, datapoints {datapoints}, {decimal(nbytes)}"
