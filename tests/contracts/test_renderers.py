"""What every built-in renderer keeps to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.contracts.shipped import check_cases, shipped

from endoscope.render import About, Numbers, Picture, Renderer, View, register, unregister
from endoscope.render.numbers import is_numbers
from endoscope.render.plain import jsonable
from endoscope.render.registry import PICTURES, Form, draw, picture
from endoscope.render.texts import ScalarRenderer

NAN, INF = float("nan"), float("inf")
G = torch.Generator().manual_seed(0)


def softmaxed(*shape: int) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, generator=G), -1)


CASES: dict[str, tuple[Any, About]] = {
    "AnythingRenderer": (object(), About("x")),
    "AttentionRenderer": (softmaxed(1, 2, 5, 5), About("attention")),
    "ChannelsRenderer": (torch.rand(1, 4, 8, 8, generator=G), About("feature_map")),
    "ClassesRenderer": (torch.randn(1, 3, generator=G), About("outputs", "outputs", classification=True)),
    "HeatmapRenderer": (torch.rand(1, 8, 8, generator=G), About("gradcam")),
    "HistogramRenderer": (torch.randn(1, 5000, generator=G), About("output")),
    "ImageRenderer": (torch.rand(1, 3, 8, 8, generator=G), About("x", "inputs")),
    "LineRenderer": (torch.randn(1, 10, generator=G), About("output")),
    "MaskRenderer": (torch.randint(0, 3, (1, 16, 16)), About("mask", "labels")),
    "MatrixRenderer": (torch.randn(1, 5, 6, generator=G), About("output")),
    "ScalarRenderer": (0.5, About("number")),
    "TableRenderer": ({"mean": 1.0, "std": NAN}, About("stats")),
    "TextRenderer": ("two\nlines", About("caption")),
    "TokensRenderer": (torch.tensor([[5, 3, 9]]), About("input_ids", "inputs")),
}
"""A value that each renderer is the first to fit."""

# `Problem` is not asked whether it fits: it is what a failed renderer becomes.
RENDERERS = [cls for cls in shipped(Renderer, "endoscope.render") if cls.__name__ != "Problem"]
each = pytest.mark.parametrize("cls", RENDERERS)

ABOUTS = [
    About("x"),
    About("x", "inputs"),
    About("mask", "labels"),
    About("outputs", "outputs", classification=True, class_names=("a", "b", "c")),
    About("attention_map", tokens=("a", "b", "c")),
    About("gradcam", image=lambda: np.full((8, 8, 3), 255, np.uint8)),
    About("input_ids", "inputs", tokens=("a", "b", "c")),
]

SHAPES = [
    (), (1,), (3,), (1, 3), (0,), (0, 3), (1, 0), (1, 3, 0, 4), (1, 1, 1, 1), (1, 3, 3), (8, 8), (3, 8, 8),
    (1, 3, 8, 8), (1, 1, 8, 8), (2, 70, 3, 3), (1, 2, 3, 8, 8), (1, 5000), (1, 1, 2000, 30), (1,) * 8,
]  # fmt: skip


def odd_values() -> Iterator[tuple[str, Any]]:
    for shape in SHAPES:
        yield f"random {shape}", torch.rand(shape, generator=G)
        yield f"NaN {shape}", torch.full(shape, NAN)
        yield f"-Inf {shape}", torch.full(shape, -INF)
        yield f"huge {shape}", torch.full(shape, 3e38)
        yield f"integers {shape}", torch.zeros(shape, dtype=torch.int64)
        yield f"bytes {shape}", torch.ones(shape, dtype=torch.uint8)
        yield f"booleans {shape}", torch.ones(shape, dtype=torch.bool)
        yield f"half {shape}", torch.ones(shape, dtype=torch.float16)
    mixed = torch.rand(1, 3, 8, 8, generator=G)
    mixed[0, 0, 0, :3] = torch.tensor([NAN, INF, -INF])
    yield "some not finite", mixed
    yield "huge and tiny", torch.tensor([[3e38, -3e38, 1e-45, 0.0]])
    yield "complex", torch.ones(1, 3, dtype=torch.complex64)
    yield "64-bit integers", torch.tensor([[2**63 - 1, -(2**63)]])
    yield "sparse", torch.eye(3).to_sparse()
    yield "texts in an array", np.array(["a", "b"])
    yield "an empty mapping", {}
    yield "a long text", "x" * 100_000
    yield "an empty text", ""
    yield "bytes", b"\x00\xff" * 5000
    yield "a large integer", 10**400
    yield "a number", NAN
    yield "a list", [1, 2.5, INF]
    yield "mixed list", [1, "a", None, [2]]
    yield "nested", {"a": {"b": [torch.zeros(2)]}, 3: None}
    yield "None", None


VALUES = dict(odd_values())


class Direct(Renderer):
    """Draws with one renderer whichever the others are: built-in ones are given tensors as `Numbers`."""

    def __init__(self, renderer: Renderer) -> None:
        self.form = renderer.form  # type: ignore[misc]
        self.renderer = renderer

    @staticmethod
    def given(value: Any) -> Any:
        return Numbers(value) if is_numbers(value) else value

    def body(self, value: Any, about: About) -> dict[str, Any]:
        return self.renderer.body(self.given(value), about)

    def picture(self, value: Any, about: About, view: View) -> Picture:
        return self.renderer.picture(self.given(value), about, view)


def check(drawn: Any, value: Any, about: About) -> None:
    """The body is plain JSON, and a picture has the size that the body says."""
    json.dumps(jsonable(drawn.body), allow_nan=False)
    if drawn.form not in PICTURES:
        return
    shown = picture(value, about, View())
    body = drawn.body
    if "tile" in body:
        (width, height), gap = body["tile"], body["gap"]
        expected = (body["columns"] * (width + gap) - gap, body["rows"] * (height + gap) - gap)
    else:
        expected = (body["width"], body["height"])
    assert (shown.width, shown.height) == expected
    assert shown.png().startswith(b"\x89PNG")
    assert shown.rgb().shape == (shown.height, shown.width, 3)


def test_every_renderer_has_a_case() -> None:
    check_cases(RENDERERS, CASES, "CASES in tests/contracts/test_renderers.py")


@each
def test_its_form_is_known_and_it_says_what_it_draws(cls: type[Renderer]) -> None:
    assert cls.form in get_args(Form)
    assert cls.__doc__


@each
def test_it_draws_its_value(cls: type[Renderer]) -> None:
    value, about = CASES[cls.__name__]
    drawn = draw(value, about)
    assert type(drawn.renderer) is cls
    assert drawn.form == cls.form
    check(drawn, value, about)


@each
def test_it_draws_every_value_that_it_says_fits(cls: type[Renderer]) -> None:
    renderer = cls()
    fitting = 0
    for about in ABOUTS:
        known = {name: getattr(about, name) for name in ("section", "class_names", "tokens", "classification", "image")}
        under = About(about.name, debugger="contract", **known)
        for name, value in VALUES.items():
            given = Direct.given(value)
            if cls is not ScalarRenderer and ScalarRenderer().fits(given, under):
                continue  # it is always asked first; no other renderer meets a single number
            if not renderer.fits(given, under):
                continue
            fitting += 1
            register(f"contract/{about.name}", Direct(renderer))
            try:
                drawn = draw(value, under)
                assert drawn.form == cls.form, f"{name} as {about.name}: {drawn.body}"
                check(drawn, value, under)
            finally:
                unregister(f"contract/{about.name}")
    assert fitting


@pytest.mark.parametrize("about", ABOUTS, ids=lambda about: f"{about.section} {about.name}")
def test_every_value_is_drawn(about: About) -> None:
    """Whatever it is: no exception and no problem."""
    for name, value in VALUES.items():
        drawn = draw(value, about)
        assert drawn.form != "problem", f"{name}: {drawn.body}"
        check(drawn, value, about)


def test_twin_a_renderer_that_breaks_the_contract_becomes_a_problem() -> None:
    class Wrong(Renderer):
        form = "line"

        def body(self, value: Any, about: About) -> dict[str, Any]:
            return {"series": 3}

    register("contract", Wrong())
    try:
        assert draw(1.0, About(debugger="contract")).form == "problem"
    finally:
        unregister("contract")
