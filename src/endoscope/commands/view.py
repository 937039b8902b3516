"""``endoscope view WORK_DIR ...``: the viewer in a browser, or with ``--export`` a selection as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from endoscope.errors import ConfigError

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_EXPORTED = {"datapoints": "--datapoints", "worst": "--worst", "metric": "--metric", "epochs": "--epochs"}


class ViewerMissing(ConfigError):
    """A package that the viewer needs is not installed; the message says what to install."""


@click.command()
@click.argument("work_dirs", metavar="WORK_DIR...", nargs=-1, required=True, type=_FOLDER)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0, the default, means any free port.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; any but loopback exposes the runs.",
)
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
    if export is not None:
        _export(work_dirs, export, datapoints, worst, metric, epochs, overwrite=overwrite)
        return
    for_export = [option for name, option in _EXPORTED.items() if context.params[name] is not None]
    if for_export or overwrite:
        option = (for_export or ["--overwrite"])[0]
        raise ConfigError(f"{option} needs --export FILE.html; without it, choose what to see in the browser")
    serve(work_dirs, host=host, port=port, browser=not no_browser)


def serve(work_dirs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, browser: bool) -> None:
    """Serve the runs until a signal. The address is printed when the server is ready."""
    try:
        from endoscope.viewer.security import is_loopback
        from endoscope.viewer.serve import Server
    except ModuleNotFoundError as e:
        raise _missing(e) from e
    if not is_loopback(host):
        click.echo(
            f"listening on {host}: anyone who has the address and its token can read these runs, and nothing is\n"
            "encrypted; ssh -L is safer",
            err=True,
        )

    with Server(work_dirs, host=host, port=port) as server:

        def ready() -> None:
            click.echo(f"Endoscope shows the runs at {server.address} (Ctrl-C ends it)")
            if browser:
                _open(server.address)

        server.run(ready)


def _export(
    work_dirs: Sequence[Path],
    file: Path,
    datapoints: str | None,
    worst: int | None,
    metric: str | None,
    epochs: str | None,
    *,
    overwrite: bool,
) -> None:
    try:
        from endoscope.report.export import Wanted, export
    except ModuleNotFoundError as e:
        raise _missing(e) from e
    wanted = Wanted.of(datapoints=datapoints, worst=worst, metric=metric, epochs=epochs)
    size = export(work_dirs, file, wanted, overwrite=overwrite)
    click.echo(f"wrote {file} ({size / 1e6:.1f} MB); any browser opens it, without a server")


def _missing(e: ModuleNotFoundError) -> Exception:
    """The error for a missing package; a missing module of our own stays what it is."""
    if e.name is None or e.name.partition(".")[0] == "endoscope":
        return e
    return ViewerMissing(
        f"the viewer needs {e.name!r}, which is not installed; install it with: pip install 'endoscope[viewer]'"
    )


def _open(address: str) -> None:
    """In a thread, because opening some browsers blocks."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
