"""Values as table cells, as JSON and as text."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pytest

from endoscope.render.plain import cell, jsonable, value_text
from endoscope.values import EnumValue, Opaque

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1.5, "−1.5"),
        (-1e-7, "−1e−07"),
        (-0.0, "0"),
        (-3, "−3"),
        (-(10**400), f"−1{'0' * 400}"),
        (-INF, "−∞"),
        (INF, "∞"),
        (NAN, "NaN"),
        (None, "–"),
        (True, "True"),
        (np.float32(0.1), "0.1"),
        ("a-b", "a-b"),
    ],
)
def test_numbers_are_written_as_in_the_viewer(value: Any, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (2**53, 2**53),
        (2**60 + 1, str(2**60 + 1)),
        pytest.param(10**5000, "an integer of 16,610 bits", id="huge"),
        ("x" * 300, "x" * 200 + "… (200 of 300 characters)"),
        (b"abc", "3 bytes"),
        (1 + 2j, "(1+2j)"),
        (EnumValue("user.Colour", "RED", 1), "RED"),
        (Opaque("user.Thing", "<Thing>"), "<Thing>"),
        (datetime.datetime(2024, 2, 29, 12), "2024-02-29T12:00:00"),
        (np.datetime64("2024-02-29"), "2024-02-29"),
        ([1, None, [2], "a"], "[1, None, …, a]"),
        ([object()], "[…]"),
        (range(3), "a range"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, … (8 of 9)]"),
    ],
)
def test_cells(value: Any, expected: Any) -> None:
    assert cell(value) == expected


def test_json_holds_numbers_that_are_not_finite_as_text() -> None:
    values = {"a": [NAN, INF, -INF, 1.0], 3: (np.float32(NAN), np.int64(2)), "\ud800": object()}
    plain = jsonable(values)
    assert plain == {"a": ["NaN", "Infinity", "-Infinity", 1.0], "3": ["NaN", 2], "?": "a object"}
    json.dumps(plain, allow_nan=False).encode()
