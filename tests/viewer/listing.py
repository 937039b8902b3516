"""A client of the viewer over folders of runs, and the runs that it lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.viewer.asgi import Client, entered

from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library

TOKEN = "the-token"


def client_of(*folders: Path) -> Client:
    return entered(create_app(Library(folders), token=TOKEN), TOKEN)


def listed(client: Client) -> dict[str, Any]:
    return {run["name"]: run for run in client.get("/api/runs").json["runs"]}


def ids(client: Client, *names: str) -> list[str]:
    found = listed(client)
    return [found[name]["id"] for name in names]


def stamp(client: Client, *run: str) -> str:
    found = client.get("/api/stamp", run=[*run]).json
    assert set(found) == {"stamp"}
    return str(found["stamp"])
