"""``endoscope view WORK_DIR ...``: the viewer in a browser, or with ``--export`` a selection as one HTML file."""

from __future__ import annotations

import contextlib
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from endoscope.errors import ConfigError

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOR_EXPORT = ("datapoints", "worst", "metric", "epochs", "overwrite")


class ViewerMissing(ConfigError):
    """A package that the viewer needs is not installed; the message says what to install."""


@click.command()
@click.argument("work_dirs", metavar="WORK_DIR...", nargs=-1, required=True, type=_FOLDER)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0, the default, means any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address; any but loopback exposes the runs.")
@click.option("--no-browser", is_flag=True, help="Print the address, open no browser.")
@click.option("--export", metavar="FILE.html", type=_FILE, help="Write a selection as one HTML file; serve nothing.")
@click.option("--datapoints", metavar="3,17,42", help="Export these datapoints.")
@click.option("--worst", type=click.IntRange(0), help="Export this many of the worst datapoints; by default 12.")
@click.option("--metric", help="The score that decides which are the worst; by default the first one.")
@click.option("--epochs", metavar="last|all|0,4", help="Export these epochs; by default the last one with scores.")
@click.option("--overwrite", is_flag=True, help="Let --export replace FILE.html.")
@click.pass_context
def view(
    context: click.Context,
    work_dirs: tuple[Path, ...],
    port: int,
    host: str,
    no_browser: bool,
    export: Path | None,
    datapoints: str | None,
    worst: int | None,
    metric: str | None,
    epochs: str | None,
    overwrite: bool,
) -> None:
    """Open runs in the browser.

    Each WORK_DIR is a run or a folder of runs. Nothing in them is changed.
    """
    if export is None:
        for option in _FOR_EXPORT:
            if (value := context.params[option]) is not None and value is not False:
                raise ConfigError(f"--{option} belongs to --export FILE.html; in the browser, choose there")
        serve(work_dirs, host=host, port=port, browser=not no_browser)
        return
    with _needs_packages():
        from endoscope.report.page import export as write
        from endoscope.report.selection import Selection
    selection = Selection.of(datapoints=datapoints, worst=worst, metric=metric, epochs=epochs)
    size = write(work_dirs, export, selection, overwrite=overwrite)
    click.echo(f"wrote {export} ({size / 1e6:.1f} MB); it opens in any browser, without a server")


def serve(work_dirs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, browser: bool) -> None:
    """Serve the runs until a signal. The address is printed when the server is ready."""
    with _needs_packages():
        from endoscope.viewer.security import is_loopback
        from endoscope.viewer.serve import Server
    if not is_loopback(host):
        text = f"listening at {host}: whoever has the address and its token can read these runs; nothing is encrypted"
        click.echo(f"{text}, and ssh -L is safer", err=True)

    with Server(work_dirs, host=host, port=port) as server:

        def ready() -> None:
            click.echo(f"Endoscope shows the runs at {server.address} (Ctrl-C ends it)")
            if browser:  # in a thread, because opening some browsers blocks
                threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()

        server.run(ready)


@contextlib.contextmanager
def _needs_packages() -> Iterator[None]:
    """Raise `ViewerMissing` if an import in the block lacks a package; a missing module of our own is a bug."""
    try:
        yield
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] == "endoscope":
            raise
        raise ViewerMissing(
            f"the viewer needs {e.name!r}, which is not installed; install it with: pip install 'endoscope[viewer]'"
        ) from e
