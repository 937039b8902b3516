"""What a link asks for and is not there, and a server that does not answer: the page says so, and stops saying so."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Viewer, expect, run_id

NOTICES = "#notices"


@pytest.mark.parametrize(
    ("screen", "query", "text"),
    [
        ("map", "epoch=99", "Epoch 99 is not in this run; epoch 2 is shown."),
        ("curves", "epoch=eval", "The evaluation is not in this run; epoch 2 is shown."),
        ("map", "metric=speed", "The score speed is not in this run; loss is shown."),
        ("curves", "run=gone-1234", "Run gone-1234 was not found; first is shown."),
    ],
)
def test_an_absent_selection_is_reported_until_a_choice(first: Viewer, screen: str, query: str, text: str) -> None:
    page = first.open(f"/{screen}?{query}")
    expect(page.locator(NOTICES)).to_contain_text(text)
    name, value = query.split("=")
    assert f"{name}={value}" in page.url
    page.get_by_label("epoch", exact=True).press("ArrowLeft")
    expect(page.locator("#controls output")).to_have_text("1")
    expect(page.locator(NOTICES)).to_be_hidden()
    assert f"{name}={value}" not in page.url
    page.go_back()
    expect(page.locator(NOTICES)).to_contain_text(text)


def test_what_is_there_has_no_notice(first: Viewer) -> None:
    both = "".join(f"&run={run_id(first, name)}" for name in ("first", "third"))
    for query in ["epoch=1&metric=accuracy&dp=4", f"epoch=eval&run={run_id(first, 'third')}", f"epoch=eval{both}"]:
        page = first.open(f"/map?{query}")
        expect(page.locator(NOTICES)).to_be_hidden()


def test_notice_is_closed(first: Viewer) -> None:
    page = first.open("/runs?epoch=99")
    page.locator(NOTICES).get_by_role("button", name="Close").click()
    expect(page.locator(NOTICES)).to_be_hidden()
    assert "epoch=2" in page.url


@pytest.mark.parametrize("screen", ["map", "datapoint", "time", "compare"])
def test_absent_datapoint_shows_no_other(first: Viewer, screen: str) -> None:
    page = first.open(f"/{screen}?dp=999&metric=loss&epoch=2")
    expect(page.locator(".trouble")).to_contain_text("no datapoint 999")
    assert page.locator("[data-section], article.layer, .frame").count() == 0
    assert page.locator("[data-dp]").count() == 0
    first.errors.clear()  # the browser tells the 404 in its console


def test_a_removed_run_is_reported(viewer: Opener, tmp_path: Path) -> None:
    runs.training(tmp_path / "stays")
    gone = runs.training(tmp_path / "goes")
    with runs.serving(tmp_path) as address:
        opened = viewer(address)
        page = opened.open(f"/curves?run={run_id(opened, 'goes')}")
        expect(page.locator("#controls .name")).to_have_text("goes")
        gone.rename(tmp_path.parent / f"{tmp_path.name}_moved")
        expect(page.locator(NOTICES)).to_contain_text("was not found; stays is shown.")
        expect(page.locator("#controls .name")).to_have_text("stays")
        opened.errors.clear()  # 404s, in the console
        page.goto("about:blank")


# ---------------------------------------------------------------- no answer
def broken_while(page: Any, address: str, answer: Callable[[Any], None]) -> threading.Event:
    """``answer`` is given in the server's place as long as the event is set. (`page.unroute` would leave requests that
    are on their way without an answer.)"""
    broken = threading.Event()
    broken.set()
    page.route(address, lambda route: answer(route) if broken.is_set() else route.continue_())
    return broken


def test_a_lost_connection_is_shown_and_cleared(first: Viewer) -> None:
    page = first.open("/map?metric=loss")
    expect(page.locator(".lost")).to_be_hidden()
    broken = broken_while(page, "**/api/stamp*", lambda route: route.abort())
    expect(page.locator(".lost")).to_have_text(re.compile(r"^no answer since \d\d:\d\d; trying again$"))
    broken.clear()
    expect(page.locator(".lost")).to_be_hidden()
    first.errors.clear()  # the browser tells failed requests in its console


def test_a_server_error_is_shown_and_cleared(first: Viewer) -> None:
    page = first.open("/curves")
    body = '{"error": {"message": "the disk is gone", "hint": "Mount it."}}'
    broken = broken_while(
        page, "**/api/stamp*", lambda route: route.fulfill(status=500, content_type="application/json", body=body)
    )
    expect(page.locator(".lost")).to_have_text(re.compile(r"^error 500 since \d\d:\d\d; trying again$"))
    expect(page.locator(".lost")).to_have_attribute("title", "the disk is gone Mount it.")
    broken.clear()
    expect(page.locator(".lost")).to_be_hidden()
    first.errors.clear()


def test_a_page_that_could_not_start_does_so_later(first: Viewer) -> None:
    page = first.page
    broken = broken_while(page, "**/api/runs*", lambda route: route.abort())
    page.goto(f"{first.base}/runs")
    expect(page.locator(".trouble")).to_contain_text("does not answer")
    broken.clear()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator(".lost")).to_be_hidden()
    first.errors.clear()


def test_the_stamp_request_names_no_runs_when_there_are_many(first: Viewer) -> None:
    """600 runs, of which the page of runs shows all, and the map as many as a person ticks."""
    page = first.page
    some = page.request.get(f"{first.base}/api/runs").json()
    many = [{**some["runs"][0], "id": f"a-rather-long-name-of-a-run-{k:08d}"} for k in range(600)]
    page.route("**/api/runs*", lambda route: route.fulfill(json={"runs": many, "problems": []}))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/stamp" in request.url else None)
    first.open("/runs")
    expect(page.locator("tbody tr")).to_have_count(600)
    with page.expect_response("**/api/stamp") as answered:
        pass
    assert answered.value.ok
    named = "".join(f"&run={run['id']}" for run in many[:40])
    first.open(f"/curves?epoch=1{named}")
    with page.expect_response("**/api/stamp") as answered:
        pass
    assert answered.value.ok
    assert max(map(len, asked)) < 1000
    first.errors.clear()  # the server does not know these runs: /api/curves refuses them


def test_a_lost_server_is_shown(viewer: Opener, tmp_path: Path) -> None:
    runs.training(tmp_path / "run")
    with runs.serving(tmp_path) as address:
        opened = viewer(address)
        page: Any = opened.open("/runs")
    expect(page.locator(".lost")).to_contain_text("no answer since")
    opened.errors.clear()  # the browser tells refused connections in its console
