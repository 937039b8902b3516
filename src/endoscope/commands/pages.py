"""``endoscope pages``: look into captures, check them, and take them elsewhere.

Only click is imported with this module; what a command needs besides it imports when it runs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def _work_dir(command: F) -> F:
    return click.argument("work_dir", type=_FOLDER)(command)


def _as_json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")(command)


def _epoch(command: F) -> F:
    return click.option("--epoch", type=int, help="The epoch; the last one by default.")(command)


@click.group()
def pages() -> None:
    """Look into captures, check them, and take them elsewhere."""


@pages.command("list")
@_work_dir
@_as_json
def list_(work_dir: Path, as_json: bool) -> None:
    """List every capture of a run: in WORK_DIR, its debugger/, and each epoch_*/debugger/."""
    from endoscope.commands.captures import capture_facts, find_captures, none_found
    from endoscope.commands.console import console, print_json
    from endoscope.commands.listing import capture_table

    facts = [capture_facts(c) for c in find_captures(work_dir)]
    if as_json:
        print_json({"work_dir": str(work_dir), "captures": facts})
    elif not facts:
        click.echo(none_found(work_dir))
    else:
        out = console()
        out.print(capture_table(facts))
        check = f"endoscope pages verify {shlex.quote(str(work_dir))}"
        out.print(f"damaged: what opening shows; to check every byte: {check}", style="dim", soft_wrap=True)


@pages.command()
@_work_dir
@click.argument("idx", type=int)
@_epoch
@click.option("--debugger", "names", multiple=True, metavar="NAME", help="Only this debugger; may be repeated.")
@_as_json
def show(work_dir: Path, idx: int, epoch: int | None, names: tuple[str, ...], as_json: bool) -> None:
    """Show what was captured of datapoint IDX: types, shapes, statistics, scalars, notes."""
    from endoscope.commands.captures import choose_capture
    from endoscope.commands.console import console, print_json
    from endoscope.commands.datapoints import datapoint_facts
    from endoscope.commands.trees import ROUNDED, datapoint_tree, notes_tree

    chosen = choose_capture(work_dir, epoch)
    with chosen.capture.open() as outputs:
        facts = datapoint_facts(outputs, idx, names)
    if chosen.remark:
        click.echo(chosen.remark, err=True)
    damaged = any("damaged" in d for d in facts["debuggers"].values())
    if as_json:
        print_json({"capture": chosen.capture.name, "epoch": chosen.capture.epoch, **facts})
    else:
        out = console()
        out.print(datapoint_tree(f"datapoint {idx} in {chosen.capture.name}", facts["debuggers"]))
        if facts["notes"]:
            out.print(notes_tree(facts["notes"]))
        out.print(ROUNDED, style="dim")
    if damaged:
        raise SystemExit(1)


@pages.command()
@_work_dir
@_as_json
def verify(work_dir: Path, as_json: bool) -> None:
    """Read every byte of every capture and compare it with what was written.

    Exit code 0: all is whole. 1: something is damaged. 2: there was nothing to check.
    """
    from endoscope.commands.captures import find_captures, none_found
    from endoscope.commands.checking import check_captures
    from endoscope.commands.console import print_json
    from endoscope.errors import PageError

    captures = find_captures(work_dir)
    if not captures:
        raise PageError(none_found(work_dir))
    result = check_captures(captures)
    if as_json:
        print_json({"work_dir": str(work_dir), **result.facts()})
    else:
        for line in result.lines():
            click.echo(line)
    raise SystemExit(result.exit_code)


@pages.command()
@_work_dir
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--index", "indices", type=int, multiple=True, metavar="I", help="Only this datapoint; may be repeated.")
@click.option("--debugger", "names", multiple=True, metavar="NAME", help="Only this debugger; may be repeated.")
@_epoch
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
def export(
    work_dir: Path, out: Path, indices: tuple[int, ...], names: tuple[str, ...], epoch: int | None, overwrite: bool
) -> None:
    """Write datapoints into OUT for use elsewhere; its ending chooses the format.

    \b
    .safetensors  tensors as idx/debugger/path; scalars as JSON in the metadata
    .npz          the same as numpy arrays; scalars as JSON in the array "scalars"
    .jsonl        scalars and texts only, one line a datapoint

    Exit code 1: some records are damaged; they were left out.
    """
    from endoscope.commands.captures import choose_capture
    from endoscope.commands.exports import export_datapoints

    chosen = choose_capture(work_dir, epoch)
    if chosen.remark:
        click.echo(chosen.remark, err=True)
    result = export_datapoints(chosen.capture, out, indices=indices, names=names, overwrite=overwrite)
    for damage in result.damage:
        click.echo(f"left out: {damage}", err=True)
    for line in result.lines():
        click.echo(line)
    raise SystemExit(1 if result.damage else 0)


@pages.command("import")
@click.argument("pickle_dir", type=_FOLDER)
@click.argument("new_dir", type=click.Path(file_okay=False, path_type=Path))
@click.option("--trust", is_flag=True, help="You trust whoever wrote the pickles: opening one can run any code.")
def import_(pickle_dir: Path, new_dir: Path, trust: bool) -> None:
    """Convert pickle pages of PICKLE_DIR into safetensors pages in NEW_DIR.

    Opening a pickle can run any code that its author put into it. Import only what you or people you trust have
    written: say so with --trust, or answer the question.
    """
    from endoscope.commands.pickles import DANGER, convert_pages, pickle_folder
    from endoscope.errors import UntrustedPickleError

    source = pickle_folder(pickle_dir)
    click.echo(f"{source}: {DANGER}", err=True)
    if not trust:
        if not sys.stdin.isatty():
            raise UntrustedPickleError("nothing was opened; if you trust whoever wrote these pickles, add --trust")
        click.confirm("Do you trust whoever wrote these pickles?", abort=True, err=True)
    click.echo(convert_pages(source, new_dir))
