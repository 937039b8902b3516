"""Values as JSON that any parser takes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from endoscope.viewer.answers import encode, numbers


def test_numbers_that_are_not_finite_are_text() -> None:
    values = np.array([1.0, math.nan, math.inf, -math.inf, math.nan, -0.0])
    missing = np.array([False, False, False, False, True, False])
    assert numbers(values, missing) == [1.0, "NaN", "Infinity", "-Infinity", None, -0.0]
    assert numbers(values[:1], missing[:1]) == [1.0]


def test_json_is_strict_and_reads_back() -> None:
    value = {"text": "grün </script> \u2028 \udcff", "numbers": [1, 2.5, None, True]}
    assert json.loads(encode(value)) == value
    with pytest.raises(ValueError, match="Out of range"):
        encode([math.nan])


def test_numbers_are_exact() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert json.loads(encode(numbers(values, np.zeros(1000, bool)))) == values.tolist()
