"""A datapoint in lines: what is said of it comes before its values are read, and both are those of the JSON form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.asgi import Client, entered

from endoscope.viewer import items
from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library

TOKEN = "the-token"


def client_of(folder: Path) -> Client:
    return entered(create_app(Library([folder]), token=TOKEN), TOKEN)


def test_lines_hold_what_the_object_holds(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    client = client_of(tmp_path)
    for dp in (0, 3):  # the loss of 3 is NaN
        whole = client.get("/api/datapoint", epoch=1, dp=dp).json
        answer = client.get("/api/datapoint", epoch=1, dp=dp, form="lines")
        assert dict(answer.headers)["content-type"] == "application/x-ndjson"
        first, second = map(json.loads, answer.body.decode().splitlines())
        assert {**first, **second} == whole
        assert {*second} == {"sections", "notes"}
        assert first["dp"] == dp and first["scores"] and first["label"]


def test_the_first_line_does_not_wait_for_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.training(tmp_path / "a")
    client = client_of(tmp_path)

    def broken(*_: Any) -> Any:
        raise RuntimeError("reading the values")

    monkeypatch.setattr(items, "sections", broken)
    answer = client.get("/api/datapoint", epoch=1, dp=0, form="lines")
    assert answer.status == 200
    (line,) = answer.body.decode().splitlines()
    assert json.loads(line)["scores"]
    assert isinstance(answer.error, RuntimeError)  # the connection is broken off: the page says so


def test_a_missing_datapoint_is_an_error_and_not_a_line(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    answer = client_of(tmp_path).get("/api/datapoint", epoch=1, dp=999, form="lines")
    assert answer.status == 404
    assert answer.json["error"]["message"] == "this epoch has no datapoint 999"
