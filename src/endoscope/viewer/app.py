"""The web application: its routes, the HTML pages, and its errors."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from endoscope import __version__
from endoscope.errors import DatapointNotFoundError, EndoscopeError
from endoscope.runs import RunNotFoundError, layout
from endoscope.runs.scores import ScoreNotFoundError
from endoscope.viewer import compare_api, runs_api, scores_api, storage_api, values_api
from endoscope.viewer.library import Library, Refusal
from endoscope.viewer.security import Guard, Hosts, add_headers, refusal
from endoscope.viewer.selection import epoch_of, scores_name

SCREENS = {
    "runs": "Runs",
    "curves": "Curves",
    "map": "Score map",
    "datapoint": "Datapoint",
    "time": "Through time",
    "compare": "Side by side",
    "storage": "Storage",
}
"""Each screen and its title."""
_HERE = Path(__file__).parent
_STATIC = _HERE / "static"


def create_app(library: Library, *, token: str, hosts: Hosts | None = None) -> Starlette:
    """The viewer of the runs in ``library``, for browsers with ``token``. By default only loopback names are allowed.

    >>> app = create_app(Library(["runs"]), token=new_token())
    """
    pages = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=True)
    routes = [
        Route("/", _landing(library)),
        *(Route(f"/{screen}", _shell(pages, screen, title)) for screen, title in SCREENS.items()),
        Route("/static/{name:path}", _static),
        *runs_api.routes(library),
        *scores_api.routes(library),
        *storage_api.routes(library),
        *values_api.routes(library),
        *compare_api.routes(library),
    ]
    errors = _Errors(library)
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts or Hosts.of("127.0.0.1"))],
        exception_handlers={
            Refusal: errors.refused,
            EndoscopeError: errors.unreadable,
            HTTPException: errors.http,
            Exception: errors.unexpected,
        },
    )


# ---------------------------------------------------------------- pages
Endpoint = Callable[[Request], Response]


def _landing(library: Library) -> Endpoint:
    def landing(request: Request) -> Response:
        """A single run with datapoints opens at once; otherwise the user chooses one."""
        entries = library.entries()
        epoch = epoch_of(library.run(entries[0].id)) if len(entries) == 1 else None
        shown = epoch is not None and any(map(epoch.holds, (scores_name(epoch), layout.OUTPUTS, layout.DEBUGGER)))
        return RedirectResponse(f"/map?run={entries[0].id}" if shown else "/runs", 303)

    return landing


def _shell(pages: Environment, screen: str, title: str) -> Endpoint:
    shared = (name for name in static_files() if name.endswith(".js") and "/" not in name and name != "main.js")
    modules = [*sorted(shared), f"screens/{screen}.js"]  # named in the page, so that the browser loads all at once

    def shell(request: Request) -> Response:
        values = {"screen": screen, "title": title, "version": __version__, "modules": modules}
        return HTMLResponse(pages.get_template("shell.html").render(values))

    return shell


def _static(request: Request) -> Response:
    """One of our own files. Its name is looked up in a list; no path is built from the request."""
    path = static_files().get(request.path_params["name"])
    if path is None:
        raise HTTPException(404)
    kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
    file = FileResponse(path, media_type=kind, stat_result=path.stat())
    if path.suffix == ".svg":
        file.headers["Cache-Control"] = "private, max-age=86400"  # else browsers request the icon at every step
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers={"ETag": file.headers["etag"]})
    return file


def static_files() -> dict[str, Path]:
    """Every file under /static/, by its name there."""
    return {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- errors
class _Errors:
    """Errors for people and scripts: without paths of this machine and without stack traces."""

    def __init__(self, library: Library) -> None:
        self._shown = library.shown

    def refused(self, request: Request, e: Exception) -> Response:
        assert isinstance(e, Refusal)
        return refusal(request.scope, e.status, self._shown(str(e)), e.hint)

    def unreadable(self, request: Request, e: Exception) -> Response:
        """A datapoint, a score or a run is missing, or something is damaged."""
        missing = isinstance(e, (DatapointNotFoundError, ScoreNotFoundError, RunNotFoundError))
        return refusal(request.scope, 404 if missing else 422, self._shown(str(e)))

    def http(self, request: Request, e: Exception) -> Response:
        assert isinstance(e, HTTPException)
        if e.status_code == 404:
            return refusal(request.scope, 404, "there is nothing at this address", "Go back to the page of runs.")
        return refusal(request.scope, e.status_code, e.detail)

    def unexpected(self, request: Request, e: Exception) -> Response:
        """A bug of ours: only the server's log has the details. This runs outside `Guard`, so it adds the headers."""
        hint = "The terminal where endoscope view runs shows the details."
        page = refusal(request.scope, 500, "something went wrong in the viewer", hint)
        add_headers(MutableHeaders(raw=page.raw_headers))
        return page
