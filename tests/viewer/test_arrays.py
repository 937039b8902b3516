"""The arrays of a score map: the numbers that its JSON has, taken apart as docs/viewer-api.md describes them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.viewer import runs
from tests.viewer.asgi import Client, entered
from tests.viewer.runs import NAN

from endoscope.runs.fields import Direction
from endoscope.viewer.app import create_app
from endoscope.viewer.arrays import pack
from endoscope.viewer.library import Library

TOKEN = "the-token"


def client_of(folder: Path) -> Client:
    return entered(create_app(Library([folder]), token=TOKEN), TOKEN)


def ids(client: Client, *names: str) -> list[str]:
    found = {run["name"]: run["id"] for run in client.get("/api/runs").json["runs"]}
    return [found[name] for name in names]


def unpacked(body: bytes) -> dict[str, Any]:
    """As docs/viewer-api.md describes it, apart from the code that writes it."""
    (length,) = struct.unpack_from("<I", body)
    found = json.loads(body[4 : 4 + length])
    at = 4 + length
    for name, kind, count in found.pop("arrays"):
        at += -at % 8
        code, size = {"i4": ("i", 4), "i8": ("q", 8), "f8": ("d", 8), "u1": ("B", 1)}[kind]
        found[name] = list(struct.unpack_from(f"<{count}{code}", body, at))
        at += count * size
    assert len(body) - at < 8 and not body[at:].strip()
    return found


def as_json(found: dict[str, Any]) -> dict[str, Any]:
    """The arrays as the lists that the JSON form has."""

    def listed(values: list[float], absent: list[int]) -> list[Any]:
        return [None if gone else text(value) for value, gone in zip(values, absent, strict=True)]

    def text(value: float) -> Any:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"

    runs = range(len(found["runs"]))
    found["values"] = [listed(found.pop(f"values/{k}"), found.pop(f"absent/{k}")) for k in runs]
    found["fails"] = [found.pop(f"fails/{k}") for k in runs]
    if found["change"] is not None:
        found["change"] = listed(found["change"], found.pop("change_absent"))
    return found


def odd_runs(folder: Path) -> Client:
    """Two runs with every kind of value, and with an index that no float can hold."""
    big = 2**53 + 1
    earlier = {0: {"loss": 1.0}, 1: {"loss": 2.0}, 2: {}, big: {"loss": NAN}}
    a = {0: {"loss": 0.1 + 0.2, "only": 1.0}, 1: {"loss": NAN}, 2: {"loss": math.inf}, big: {"loss": -math.inf}}
    b = {0: {"loss": -0.0}, 3: {"loss": 5e-324}, -7: {}}
    directions: dict[str, Direction] = {"loss": "lower", "only": "higher"}
    for name, epochs in (("a", [earlier, a]), ("b", [b, b])):
        runs.write_about(folder / name)
        for epoch, rows in enumerate(epochs):
            runs.write_table(folder / name / f"epoch_{epoch}", rows, epoch=epoch, directions=directions)
    return client_of(folder)


@pytest.mark.parametrize("order", ["failures", "index", "change", "disagreement"])
@pytest.mark.parametrize("metric", ["loss", "only"])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_arrays_hold_what_the_lists_hold(order: str, metric: str, names: list[str], tmp_path: Path) -> None:
    client = odd_runs(tmp_path)
    query = {"run": ids(client, *names), "epoch": 1, "metric": metric, "order": order, "percentile": 40}
    lists, packed = client.get("/api/map", **query), client.get("/api/map", **query, form="arrays")
    assert dict(packed.headers)["content-type"] == "application/octet-stream"
    assert as_json(unpacked(packed.body)) == lists.json
    assert 2**53 + 1 in lists.json["indices"]
    tag = dict(packed.headers)["etag"]
    assert tag != dict(lists.headers)["etag"]
    assert client.get("/api/map", **query, form="arrays", headers=[("if-none-match", tag)]).status == 304


def test_a_map_without_scores_as_arrays(tmp_path: Path) -> None:
    runs.write_about(tmp_path / "a")
    (tmp_path / "a" / "epoch_0").mkdir()
    client = client_of(tmp_path)
    found = as_json(unpacked(client.get("/api/map", form="arrays").body))
    assert found == client.get("/api/map").json
    assert (found["indices"], found["values"], found["metric"]) == ([], [[]], None)


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    answer = odd_runs(tmp_path).get("/api/map", form="array")
    assert answer.status == 400
    assert "closest: 'arrays'" in answer.json["error"]["message"]


def test_arrays_of_every_kind_begin_where_a_browser_can_take_them() -> None:
    for text in ("", "a", "ab", "äöü", "x" * 9):
        given = {"few": np.array([1, 0, 1], bool), "large": np.array([2**40]), "none": np.empty(0), "f": np.ones(2)}
        found = unpacked(pack({"text": text}, given))
        assert found == {"text": text, "few": [1, 0, 1], "large": [2**40], "none": [], "f": [1.0, 1.0]}
