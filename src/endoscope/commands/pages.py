"""``endoscope pages``: list, show, verify, export and import captures.

This module imports only click. Each command imports the rest when it runs.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

_work_dir = click.argument("work_dir", type=_FOLDER)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_epoch = click.option("--epoch", type=int, help="The epoch; by default the last one.")
_debugger = click.option(
    "--debugger", "names", multiple=True, metavar="NAME", help="Only this debugger; may be repeated."
)


@click.group()
def pages() -> None:
    """List, show, verify, export and import captures."""


@pages.command("list")
@_work_dir
@_as_json
def list_(work_dir: Path, as_json: bool) -> None:
    """List the captures of a run.

    They are in WORK_DIR, its debugger/, and each epoch_*/debugger/.
    """
    from endoscope.commands.captures import capture_facts, find_captures, no_captures
    from endoscope.commands.console import console, print_json
    from endoscope.commands.listing import capture_table

    facts = [capture_facts(c) for c in find_captures(work_dir)]
    if as_json:
        print_json({"work_dir": str(work_dir), "captures": facts})
    elif not facts:
        click.echo(no_captures(work_dir))
    else:
        out = console()
        out.print(capture_table(facts))
        verify = f"endoscope pages verify {shlex.quote(str(work_dir))}"
        out.print(f"damaged: damage seen when opening; to check every byte: {verify}", style="dim", soft_wrap=True)


@pages.command()
@_work_dir
@click.argument("idx", type=int)
@_epoch
@_debugger
@_as_json
def show(work_dir: Path, idx: int, epoch: int | None, names: tuple[str, ...], as_json: bool) -> None:
    """Show what was captured of datapoint IDX.

    Prints types, shapes, statistics, scalars and notes. Exit code 1: some values are damaged.
    """
    from endoscope.commands.captures import choose_capture
    from endoscope.commands.console import console, print_json
    from endoscope.commands.datapoints import datapoint_facts
    from endoscope.commands.trees import ROUNDED, datapoint_tree, notes_tree

    capture = choose_capture(work_dir, epoch)
    with capture.open() as outputs:
        facts = datapoint_facts(outputs, idx, names)
    if as_json:
        print_json({"capture": capture.name, "epoch": capture.epoch, **facts})
    else:
        out = console()
        out.print(datapoint_tree(f"datapoint {idx} in {capture.name}", facts["debuggers"]))
        if facts["notes"]:
            out.print(notes_tree(facts["notes"]))
        out.print(ROUNDED, style="dim")
    if any("damaged" in d for d in facts["debuggers"].values()):
        raise SystemExit(1)


@pages.command()
@_work_dir
@_as_json
def verify(work_dir: Path, as_json: bool) -> None:
    """Compare every byte with its checksum.

    Exit code 0: no damage. 1: damage. 2: there was nothing to check.
    """
    from endoscope.commands.captures import find_captures, no_captures
    from endoscope.commands.checking import check_captures
    from endoscope.commands.console import print_json
    from endoscope.errors import PageError

    captures = find_captures(work_dir)
    if not captures:
        raise PageError(no_captures(work_dir))
    facts, lines, exit_code = check_captures(captures)
    if as_json:
        print_json({"work_dir": str(work_dir), **facts})
    else:
        click.echo("\n".join(lines))
    raise SystemExit(exit_code)


@pages.command()
@_work_dir
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--index", "indices", type=int, multiple=True, metavar="I", help="Only this datapoint; may be repeated.")
@_debugger
@_epoch
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
def export(
    work_dir: Path, out: Path, indices: tuple[int, ...], names: tuple[str, ...], epoch: int | None, overwrite: bool
) -> None:
    """Write datapoints to a file for other programs.

    The suffix of OUT chooses the format:

    \b
    .safetensors  tensors as idx/debugger/path; scalars as JSON in the metadata
    .npz          the same as numpy arrays; scalars as JSON in the array "scalars"
    .jsonl        scalars and texts only, one line per datapoint

    Exit code 1: some records are damaged and were left out.
    """
    from endoscope.commands.captures import choose_capture
    from endoscope.commands.exports import export_datapoints

    capture = choose_capture(work_dir, epoch)
    result = export_datapoints(capture, out, indices=indices, names=names, overwrite=overwrite)
    for damage in result.damage:
        click.echo(f"left out: {damage}", err=True)
    for line in result.lines():
        click.echo(line)
    raise SystemExit(1 if result.damage else 0)


@pages.command("import")
@click.argument("pickle_dir", type=_FOLDER)
@click.argument("new_dir", type=click.Path(file_okay=False, path_type=Path))
@click.option("--trust", is_flag=True, help="You trust the author of the pickles: opening one can run any code.")
def import_(pickle_dir: Path, new_dir: Path, trust: bool) -> None:
    """Convert pickle pages into safetensors pages.

    Reads PICKLE_DIR and writes NEW_DIR. Opening a pickle can run any code that its author put into it. Import only
    what you or people you trust have written: confirm with --trust, or when asked.
    """
    from endoscope.commands.pickles import DANGER, convert_pages, pickle_folder
    from endoscope.errors import UntrustedPickleError

    source = pickle_folder(pickle_dir)
    click.echo(f"{source}: {DANGER}", err=True)
    if not trust:
        if not sys.stdin.isatty():
            raise UntrustedPickleError("nothing was opened; if you trust the author of these pickles, add --trust")
        click.confirm("Do you trust the author of these pickles?", abort=True, err=True)
    click.echo(convert_pages(source, new_dir))
