"""``endoscope view WORK_DIR ...``: the eval viewer in a browser."""

from __future__ import annotations

from pathlib import Path

import click

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("work_dirs", metavar="WORK_DIR...", nargs=-1, required=True, type=_FOLDER)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0, the default, takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others than loopback expose it.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def view(work_dirs: tuple[Path, ...], port: int, host: str, no_browser: bool) -> None:
    """Open the runs in each WORK_DIR, a run or a folder of runs, in the browser. Nothing in them is changed."""
    from endoscope.errors import ConfigError

    try:
        from endoscope.viewer.app import plotly_file
        from endoscope.viewer.security import is_loopback
        from endoscope.viewer.serve import Server

        plotly_file()
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] == "endoscope":
            raise
        raise ConfigError(
            f"the viewer needs {e.name!r}, which is not installed; install it with: pip install 'endoscope[viewer]'"
        ) from e
    if not is_loopback(host):
        text = f"listening at {host}: whoever has the address and its token can read these runs; nothing is encrypted"
        click.echo(f"{text}, and ssh -L is safer", err=True)

    with Server(work_dirs, host=host, port=port) as server:

        def ready() -> None:
            click.echo(f"Endoscope shows the runs at {server.address} (Ctrl-C ends it)")
            if not no_browser:
                _open(server.address)

        server.run(ready)


def _open(address: str) -> None:
    """In a thread, because some browsers are waited for."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
