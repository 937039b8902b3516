"""One selection for all screens: in the address, in the history, under the keys."""

from __future__ import annotations

from tests.viewer.browser.conftest import Viewer, expect, run_id

DATAPOINT = "section[aria-label=Datapoint]"


def test_deep_link_restores_everything(first: Viewer) -> None:
    run = run_id(first, "second")
    page = first.open(f"/map?run={run}&epoch=1&metric=accuracy&dp=7&order=index")
    expect(page.locator("#controls .name")).to_have_text("second")
    expect(page.locator("#controls output")).to_have_text("1")
    expect(page.get_by_label("metric")).to_have_value("accuracy")
    expect(page.get_by_label("order of the map")).to_have_value("index")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", "7")
    for screen in ["Through time", "Datapoint", "Curves"]:
        page.get_by_role("navigation").get_by_role("link", name=screen).click()
        for part in [f"run={run}", "epoch=1", "metric=accuracy", "dp=7"]:
            assert part in page.url


def test_back_and_forward(first: Viewer) -> None:
    page = first.open("/map?metric=loss&dp=4&epoch=2")
    page.get_by_label("metric").select_option("accuracy")
    page.get_by_role("navigation").get_by_role("link", name="Curves").click()
    expect(page.locator("h1")).to_have_text("Curves")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Score map")
    expect(page.get_by_label("metric")).to_have_value("accuracy")
    page.go_back()
    expect(page.get_by_label("metric")).to_have_value("loss")
    page.go_forward()
    expect(page.get_by_label("metric")).to_have_value("accuracy")


def test_j_and_k_walk_in_the_order_of_the_map(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=2")
    order = page.request.get(f"{first.base}/api/map?epoch=2&metric=loss").json()["indices"]
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(order[0]))
    page.keyboard.press("j")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(order[1]))
    page.keyboard.press("j")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(order[2]))
    page.keyboard.press("k")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", str(order[1]))
    assert f"dp={order[1]}" in page.url


def test_arrows_change_the_epoch(first: Viewer) -> None:
    page = first.open("/datapoint?dp=4")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "2")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "1")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # there is no later one
    expect(page.locator(DATAPOINT)).to_have_attribute("data-epoch", "2")


def test_f_shows_failures_only(first: Viewer) -> None:
    page = first.open("/map?metric=loss&epoch=1&percentile=25")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "12")
    page.keyboard.press("f")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "3")
    expect(page.get_by_role("button", name="Failures only")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("f")
    expect(page.locator("canvas")).to_have_attribute("data-cells", "12")


def test_slash_jumps_to_an_index(first: Viewer) -> None:
    page = first.open("/curves")
    page.keyboard.press("/")
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Score map")
    expect(page.locator(DATAPOINT)).to_have_attribute("data-dp", "9")


def test_question_mark_opens_help(first: Viewer) -> None:
    page = first.open("/runs")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("next datapoint")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard")).to_have_count(0)


def test_theme_is_turned_and_remembered(first: Viewer) -> None:
    page = first.open("/map")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_keys_work_after_the_slider_and_a_choice_with_the_mouse(first: Viewer) -> None:
    page = first.open("/map?metric=loss&dp=4&epoch=2")
    page.get_by_label("epoch", exact=True).click()
    page.keyboard.press("f")
    page.wait_for_url("**only=failures**")
    page.get_by_label("metric", exact=True).focus()
    page.keyboard.press("f")  # a choice by its first letter, not a shortcut
    assert "only=failures" in page.url
    page.get_by_label("metric", exact=True).dispatch_event("pointerdown")
    page.get_by_label("metric", exact=True).select_option("accuracy")
    page.keyboard.press("f")
    page.wait_for_function("!location.search.includes('only')")


def test_an_invalid_index_is_reported_in_its_field(first: Viewer) -> None:
    page = first.open("/map?metric=loss&dp=4")
    field = page.get_by_label("jump to a datapoint")
    field.fill("three")
    field.press("Enter")
    assert field.evaluate("field => field.validationMessage") == "An index is an integer."
    field.fill("3")
    assert field.evaluate("field => field.validationMessage") == ""
    field.press("Enter")
    page.wait_for_url("**dp=3**")


def test_the_last_run_stays_ticked(first: Viewer) -> None:
    page = first.open(f"/runs?run={run_id(first, 'second')}")
    box = page.get_by_label("show second")
    box.click()
    expect(page.get_by_label("show second")).to_be_checked()
    assert "second" in page.url


def test_keys_do_nothing_while_one_types(first: Viewer) -> None:
    page = first.open("/map?metric=loss&dp=4")
    page.get_by_label("jump to a datapoint").fill("")
    page.get_by_label("jump to a datapoint").press("j")
    page.get_by_label("jump to a datapoint").press("f")
    assert "dp=4" in page.url and "only" not in page.url
