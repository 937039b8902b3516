"""Several runs at once: each screen shows the run of the datapoint, tables say of which run a row is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.browser.conftest import Opener, Serve, Viewer, expect, run_id

DATAPOINT = "section[aria-label=Datapoint]"


def both(opened: Viewer, *names: str) -> str:
    return "".join(f"&run={run_id(opened, name)}" for name in names)


def asked(page: Any, path: str) -> list[str]:
    """The addresses below `path` that are asked for from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if path in request.url else None)
    return found


# Datapoint 11 is in "first" only, and "second" stands first in these addresses.
def test_through_time_follows_the_run_of_the_datapoint(first: Viewer) -> None:
    questions = asked(first.page, "/api/time")
    page = first.open(f"/time?dp=11&epoch=2&metric=loss{both(first, 'second', 'first')}")
    expect(page.locator("p.sub").first).to_contain_text("Datapoint 11 of first;")
    expect(page.locator(".frame")).to_have_count(2)
    assert questions and all(f"run={run_id(first, 'first')}" in url for url in questions)


def test_through_time_of_a_chosen_run(first: Viewer) -> None:
    page = first.open(f"/time?dp=4&epoch=2&metric=loss{both(first, 'first', 'second')}")
    expect(page.locator("p.sub").first).to_contain_text("of first;")
    page.get_by_role("group", name="run of the datapoint").get_by_role("button", name="second").click()
    expect(page.locator("p.sub").first).to_contain_text("of second;")


@pytest.mark.parametrize("mode", ["success", "epochs"])
def test_side_by_side_of_the_run_of_the_datapoint(first: Viewer, mode: str) -> None:
    page = first.open(f"/compare?mode={mode}&dp=11&other=1&epoch=2&metric=loss{both(first, 'second', 'first')}")
    expect(page.locator("article.layer").first).to_be_visible()
    cards = page.locator(".sidecard[data-run]")
    expect(cards).to_have_count(2)
    for k in range(2):
        expect(cards.nth(k)).to_have_attribute("data-run", run_id(first, "first"))


def test_two_of_three_runs_are_chosen(first: Viewer) -> None:
    page = first.open(f"/compare?mode=runs&dp=4&epoch=2&metric=loss{both(first, 'first', 'second', 'third')}")
    right = page.locator(".sidecard[data-run]").nth(1)
    expect(right).to_have_attribute("data-run", run_id(first, "second"))
    expect(page.locator(".sidecard").last).to_contain_text("of 3 runs")
    page.get_by_label("the other run").select_option("third")
    expect(right).to_have_attribute("data-run", run_id(first, "third"))
    page.get_by_role("group", name="run of the datapoint").get_by_role("button", name="second").click()
    expect(page.locator(".sidecard[data-run]").first).to_have_attribute("data-run", run_id(first, "second"))
    expect(right).to_have_attribute("data-run", run_id(first, "third"))


# ---------------------------------------------------------------- tables below the map
@pytest.fixture
def three(viewer: Opener, served: Serve, tmp_path: Path) -> Viewer:
    """Three runs with the scores of 20 datapoints: 5 is bad in all, 7 in two, 9 in one."""

    def rows(bad: dict[int, float]) -> dict[int, dict[str, float]]:
        return {k: {"loss": bad.get(k, k / 100)} for k in range(20)}

    made: Callable[[str, dict[int, float]], None] = lambda name, bad: runs.write_epoch(  # noqa: E731
        runs.training(tmp_path / name, epochs=1), 0, rows=rows(bad), capture=False
    )
    made("a", {5: 9.0, 7: 8.0})
    made("b", {5: 6.0, 9: 7.0})
    made("c", {5: 9.5, 7: 8.5})
    return viewer(served(tmp_path))


def cells(page: Any, name: str) -> list[list[str]]:
    table = page.get_by_role("table", name=name)
    expect(table).to_be_visible()
    found: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    return found


def test_worst_rows_of_several_runs_say_of_which(three: Viewer) -> None:
    page = three.open(f"/map?metric=loss&percentile=10{both(three, 'a', 'b', 'c')}")
    rows = [(row[0], row[1], row[3]) for row in cells(page, "Worst datapoints")]
    assert rows[:6] == [
        ("5", "c", "9.500"),
        ("5", "a", "9"),
        ("7", "c", "8.500"),
        ("7", "a", "8"),
        ("9", "b", "7"),
        ("5", "b", "6"),
    ]
    assert len(rows) == 20
    page.get_by_role("table", name="Worst datapoints").locator("tbody tr").nth(4).click()
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", "9")
    expect(page.locator(f"{DATAPOINT} .tabs [aria-pressed=true]")).to_have_text("b")


def test_a_datapoint_is_shown_in_a_run_in_which_it_fails(three: Viewer) -> None:
    page = three.open(f"/map?metric=loss&percentile=5&dp=9{both(three, 'a', 'b', 'c')}")
    expect(page.locator(f"{DATAPOINT} .tabs [aria-pressed=true]")).to_have_text("b")
    expect(page.locator(f"{DATAPOINT} .pill")).to_have_text("fails")


def test_disagreement_needs_two_runs(three: Viewer) -> None:
    page = three.open(f"/map?metric=loss&order=disagreement{both(three, 'a', 'b')}")
    expect(page.get_by_label("order of the map")).to_have_value("disagreement")
    page = three.open(f"/map?metric=loss&order=disagreement{both(three, 'a')}")
    expect(page.get_by_label("order of the map")).to_have_value("failures")
    expect(page.locator("p.sub").first).to_contain_text("worst first")


def test_worst_rows_of_one_run_have_no_run(three: Viewer) -> None:
    page = three.open(f"/map?metric=loss{both(three, 'b')}")
    assert cells(page, "Worst datapoints")[0][:2] == ["9", cells(page, "Worst datapoints")[0][1]]
    assert "run" not in page.get_by_role("table", name="Worst datapoints").locator("th").all_inner_texts()
    assert page.get_by_role("table", name="Common failures").count() == 0


@pytest.mark.parametrize("order", ["failures", "index"])
def test_common_failures_are_counted_and_lead_on(three: Viewer, order: str) -> None:
    page = three.open(f"/map?metric=loss&percentile=10&order={order}{both(three, 'a', 'b', 'c')}")
    rows = [row[:2] for row in cells(page, "Common failures")]
    assert rows == [["5", "3 of 3 runs"], ["7", "2 of 3 runs"], ["9", "1 of 3 runs"]]
    expect(page.locator("[data-common]")).to_contain_text(
        "3 datapoints fail: 1 in 3 of 3, 1 in 2 of 3, 1 in 1 of 3 runs."
    )
    page.get_by_role("table", name="Common failures").get_by_role("link", name="7", exact=True).click()
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", "7")
    page.get_by_role("table", name="Common failures").get_by_role("link", name="side by side").nth(1).click()
    expect(page.locator("h1")).to_have_text("Side by side")
    expect(page.locator("[aria-label='what to compare'] [aria-pressed=true]")).to_have_text("Two runs")
    assert "dp=7" in page.url


def test_nothing_fails_in_common(viewer: Opener, served: Serve, tmp_path: Path) -> None:
    for name in ("a", "b"):
        runs.write_epoch(
            runs.training(tmp_path / name, epochs=1), 0, rows={k: {"loss": 1.0} for k in range(5)}, capture=False
        )
    opened = viewer(served(tmp_path))
    page = opened.open(f"/map?metric=loss{both(opened, 'a', 'b')}")
    expect(page.locator("[data-common]")).to_contain_text("No datapoint fails in any of these runs.")


# ---------------------------------------------------------------- runs of different length
@pytest.fixture
def uneven(viewer: Opener, served: Serve, tmp_path: Path) -> Viewer:
    """Epochs 0 to 3, and 0 to 1."""
    runs.training(tmp_path / "long", epochs=4)
    runs.training(tmp_path / "short", epochs=2)
    return viewer(served(tmp_path))


def test_runs_open_at_the_last_epoch_that_all_have_scores_of(uneven: Viewer) -> None:
    page = uneven.open(f"/map?metric=loss{both(uneven, 'long', 'short')}")
    expect(page.locator("canvas")).to_have_count(2)
    for k in range(2):
        expect(page.locator("canvas").nth(k)).to_have_attribute("data-epoch", "1")
    expect(page.locator("p.sub").first).to_contain_text("fail in both runs.")
    page = uneven.open(f"/map?metric=loss{both(uneven, 'long')}")
    expect(page.locator("canvas")).to_have_attribute("data-epoch", "3")


def test_an_evaluation_has_its_scores_beside_any_epoch(uneven: Viewer, tmp_path: Path) -> None:
    runs.evaluation(tmp_path / "evaluated")
    runs.just_started(tmp_path / "begun")
    page = uneven.open("/runs")
    expect(page.locator("tbody tr")).to_have_count(4)
    page = uneven.open(f"/map?metric=loss{both(uneven, 'long', 'short', 'evaluated', 'begun')}")
    expect(page.locator("canvas").first).to_have_attribute("data-epoch", "1")
    expect(page.locator("p.sub").first).to_contain_text("fail in all 3 runs that have scores here.")
    page = uneven.open(f"/map?metric=loss{both(uneven, 'long', 'evaluated')}")
    expect(page.locator("canvas").first).to_have_attribute("data-epoch", "3")


def test_a_run_without_scores_in_the_epoch_is_not_counted(uneven: Viewer) -> None:
    page = uneven.open(f"/map?metric=loss&epoch=3&percentile=25{both(uneven, 'long', 'short')}")
    # A NaN and the worst number; the two that come next are equal, and one too many for 3 of 12.
    expect(page.locator("p.sub").first).to_contain_text("2 fail in the 1 run that has scores here.")
    expect(page.locator("[data-fails='1']")).to_have_text("no scores")
    expect(page.locator(".problems")).to_contain_text("short has no epoch 3")


def test_common_failures_count_runs_with_scores(uneven: Viewer) -> None:
    page = uneven.open(f"/map?metric=loss&epoch=3&percentile=25{both(uneven, 'long', 'short')}")
    expect(page.locator("[data-common]")).to_contain_text("2 datapoints fail: 2 in 1 of 1 run that has scores here.")
    assert [row[1] for row in cells(page, "Common failures")] == ["1 of 1 run"] * 2
