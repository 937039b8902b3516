"""``endoscope view WORK_DIR ...``: the eval viewer in a browser, or with ``--export`` a selection as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from endoscope.errors import ConfigError

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_EXPORTED = {"datapoints": "--datapoints", "worst": "--worst", "metric": "--metric", "epochs": "--epochs"}


class ViewerMissing(ConfigError):
    """A package that the viewer needs is not installed; the text says what to do."""


@click.command()
@click.argument("work_dirs", metavar="WORK_DIR...", nargs=-1, required=True, type=_FOLDER)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0, the default, takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others than loopback expose it.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--export", metavar="FILE.html", type=_FILE, help="Write a page that opens from disk, and serve nothing.")
@click.option("--datapoints", metavar="3,17,42", help="Exported datapoints, by index.")
@click.option("--worst", type=click.IntRange(0), help="So many of the worst datapoints are exported; 12 by default.")
@click.option("--metric", help="The score by which they are the worst; the first one by default.")
@click.option("--epochs", metavar="last|all|0,4", help="Exported epochs; the last scored one by default.")
@click.option("--overwrite", is_flag=True, help="Let --export replace a file.")
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
    """Open the runs in each WORK_DIR, a run or a folder of runs, in the browser. Nothing in them is changed."""
    if export is not None:
        _export(work_dirs, export, datapoints, worst, metric, epochs, overwrite=overwrite)
        return
    alone = [option for name, option in _EXPORTED.items() if context.params[name] is not None]
    if alone or overwrite:
        raise ConfigError(f"{(alone or ['--overwrite'])[0]} belongs to --export FILE.html; in the browser choose there")
    serve(work_dirs, host=host, port=port, browser=not no_browser)


def serve(work_dirs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, browser: bool) -> None:
    """Answer until a signal ends it; the address is printed once it does."""
    try:
        from endoscope.viewer.security import is_loopback
        from endoscope.viewer.serve import Server
    except ModuleNotFoundError as e:
        raise _missing(e) from e
    if not is_loopback(host):
        text = f"listening at {host}: whoever has the address and its token can read these runs; nothing is encrypted"
        click.echo(f"{text}, and ssh -L is safer", err=True)

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
    click.echo(f"wrote {file} ({size / 1e6:.1f} MB); it opens in any browser, without a server")


def _missing(e: ModuleNotFoundError) -> Exception:
    if e.name is None or e.name.partition(".")[0] == "endoscope":
        return e
    return ViewerMissing(
        f"the viewer needs {e.name!r}, which is not installed; install it with: pip install 'endoscope[viewer]'"
    )


def _open(address: str) -> None:
    """In a thread, because some browsers are waited for."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
