"""Registered renderers, and that an error of a renderer ends in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from endoscope import render
from endoscope.errors import ConfigError
from endoscope.render import About, Numbers, Renderer, View, register, unregister
from endoscope.render.images import ImageRenderer
from endoscope.render.registry import Form, NotDrawn, draw, picture
from endoscope.report.items import shown
from endoscope.runs.datapoint_values import Item, walk


class Returning(Renderer):
    """Returns what it is given as a body and picture, and raises what is an exception."""

    def __init__(self, form: Any, body: Any, drawn: Any = None) -> None:
        self.form = form  # type: ignore[misc]
        self._body = body
        self._drawn = drawn

    def body(self, value: Any, about: About) -> Any:
        body = self._body(value) if callable(self._body) else self._body
        if isinstance(body, Exception):
            raise body
        return body

    def picture(self, value: Any, about: About, view: View) -> Any:
        return self._drawn


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    yield
    for name in ("odd", "odd/word"):
        with contextlib.suppress(ConfigError):
            unregister(name)


def test_a_registered_renderer_is_given_the_complete_value_of_its_debugger() -> None:
    register("odd", Returning("text", lambda value: {"text": value["word"].upper()}))
    (item,) = walk("debugger", {"word": "abc", "x": torch.zeros(3)}, "odd")
    assert draw(item.value, About(item.key, debugger="odd")).body["text"] == "ABC"
    assert len([*walk("debugger", {"word": "abc", "x": torch.zeros(3)}, "another")]) == 2


def test_a_renderer_may_be_registered_for_one_value() -> None:
    register("odd/word", Returning("text", lambda value: {"text": value[::-1]}))
    items = {one.name: one for one in walk("debugger", {"word": "abc", "x": torch.zeros(3)}, "odd")}
    assert draw(items["word"].value, About("word", debugger="odd")).body["text"] == "cba"
    assert draw(items["x"].value, About("x", debugger="odd")).form == "line"


def test_a_mistake_is_refused_at_registration() -> None:
    with pytest.raises(ConfigError, match="the class Returning; it needs an object"):
        register("odd", Returning)
    with pytest.raises(ConfigError, match="Returning.form must be one of 'image', 'channels'"):
        register("odd", Returning("film", {}))
    with pytest.raises(ConfigError, match="no renderer is registered for 'odd'"):
        unregister("odd")


SHEET = {"columns": 2, "rows": 1, "tile": [8, 8], "shown": 2, "of": 2}
NO_SHEET = (
    "ValueError: 'columns', 'rows', 'shown' and 'of' must be 1 or more, and 'tile' must hold a width and a height"
)
WRONG_BODIES: list[tuple[Form, Any, str]] = [
    ("line", KeyError("power"), "KeyError: 'power'"),
    ("table", {"columns": ["a"]}, "ValueError: the body of the form 'table' lacks 'rows'"),
    ("table", {"columns": ["a"], "rows": [1]}, "ValueError: each item of 'rows' must be a list"),
    ("line", {"series": [[1.0, 2.0]]}, "ValueError: each item of 'series' must have a list 'values'"),
    (
        "channels",
        {"columns": 2, "rows": 1, "tile": [8, 8], "shown": 2},
        "ValueError: the body of the form 'channels' lacks 'of'",
    ),
    ("channels", {**SHEET, "columns": 0}, NO_SHEET),
    ("attention", {**SHEET, "tile": [8]}, NO_SHEET),
    ("attention", {**SHEET, "tile": 64}, "TypeError: 'tile' in the body of the form 'attention' is int"),
    ("text", {"text": 3}, "TypeError: 'text' in the body of the form 'text' is int"),
    ("scalar", None, "TypeError: body() returned NoneType, expected a dict"),
]


@pytest.mark.parametrize(("form", "body", "message"), WRONG_BODIES)
def test_an_error_or_a_wrong_body_is_a_problem_in_its_place(form: Form, body: Any, message: str) -> None:
    register("odd", Returning(form, body))
    drawn = draw({"a": 1}, About(debugger="odd"))
    one = shown(Item("debugger", "odd", (), {"a": 1}), About(debugger="odd"))
    assert drawn.form == one.form == "problem"
    assert drawn.body == one.body == {"message": f"this value could not be drawn: {message}"}


def test_a_picture_of_a_wrong_type_is_a_problem() -> None:
    register("odd", Returning("image", {"width": 1, "height": 1}, np.zeros((1, 1, 3), np.uint8)))
    one = shown(Item("debugger", "odd", (), 1), About(debugger="odd"))
    with pytest.raises(NotDrawn, match="expected a Picture"):
        picture(1, About(debugger="odd"), View())
    assert one.body["message"].startswith(
        "this picture could not be drawn: TypeError: Returning.picture() returned ndarray"
    )


def test_errors_of_renderers_are_caught_in_one_place() -> None:
    files = Path(render.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "except Exception" in path.read_text()] == ["registry.py"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"shown": 1, "of": "many"}, "'of'"), ({"range": [0]}, "'range' must hold two numbers"), ({"note": 3}, "'note'")],
)
def test_a_wrong_optional_field_is_a_problem(fields: dict[str, Any], message: str) -> None:
    register("odd", Returning("text", {"text": "fine", **fields}))
    drawn = draw(1, About(debugger="odd"))
    assert drawn.form == "problem" and message in drawn.body["message"]


def test_a_single_number_among_the_outputs_is_not_an_image() -> None:
    assert not ImageRenderer().fits(Numbers(torch.tensor(1.0)), About(section="outputs"))
