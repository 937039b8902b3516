from __future__ import annotations

import functools
import json
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.runners.config.file import load_config
from endoscope.runners.config.plain import MAX_ITEMS, MAX_TEXT, MISSING, as_json, differences


class Box:
    def method(self) -> None: ...


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Long:
    def __repr__(self) -> str:
        return "x" * 1000


def function() -> None: ...


HERE = Box.__module__


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.1, 0.1),
        ("text", "text"),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ({1: "one", None: 2}, {"1": "one", "None": 2}),
        ({"b", "a"}, ["a", "b"]),
        (pathlib.PurePosixPath("runs/x"), "runs/x"),
        (Box, f"{HERE}.Box"),
        (Box.method, f"{HERE}.Box.method"),
        (function, f"{HERE}.function"),
        (complex, "builtins.complex"),
        (len, "builtins.len"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (float("nan"), {"repr": "nan"}),
        (float("-inf"), {"repr": "-inf"}),
        (torch.float16, {"repr": "torch.float16"}),
        (torch.device("cpu"), {"repr": "device(type='cpu')"}),
        (torch.zeros(2, 3), {"repr": "Tensor(shape=[2, 3], dtype=torch.float32)"}),
        (np.zeros(2), {"repr": "ndarray(shape=[2], dtype=float64)"}),
        (b"bytes", {"repr": "b'bytes'"}),
        (Box(), {"repr": f"<{HERE}.Box object>"}),
        (functools.partial(function), {"repr": "functools.partial(<function function>)"}),
        (Broken(), {"repr": "a Broken whose repr raised RuntimeError"}),
        (Long(), {"repr": "x" * MAX_TEXT + "... (1000 characters)"}),
        ([0] * (MAX_ITEMS + 1), {"repr": "a list of 1001 items"}),
    ],
)
def test_every_value_becomes_plain_data(value: Any, expected: Any) -> None:
    plain = as_json(value)
    assert plain == expected
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_a_cyclic_config_ends() -> None:
    config: dict[str, Any] = {}
    config["itself"] = config
    assert "nested deeper than 32 levels" in json.dumps(as_json(config))


def test_two_equal_configs_give_the_same_and_in_the_order_written() -> None:
    def made() -> dict[str, Any]:
        return {"b": Box(), "a": {"x", "y", "z"}, "f": lambda: None}

    assert json.dumps(as_json(made())) == json.dumps(as_json(made()))
    assert list(as_json(made())) == ["b", "a", "f"]


def test_the_config_is_not_changed() -> None:
    config = {"a": (1, 2), "b": {"class": Box}}
    as_json(config)
    assert config == {"a": (1, 2), "b": {"class": Box}}


def test_equal_structures_have_no_differences() -> None:
    config = {"seed": 0, "optimizer": {"class": "a.B", "args": {"betas": [0.9, 0.99]}}}
    assert differences(config, json.loads(json.dumps(config))) == []


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"seed": 0}, {"seed": 1}, ["seed"]),
        ({"seed": 0}, {}, ["seed"]),
        ({}, {"seed": 0}, ["seed"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b.1"]),
        ({"a": [1]}, {"a": [1, 2, 3]}, ["a.1", "a.2"]),
        ({"a": [1]}, {"a": {"b": 1}}, ["a"]),
        ({"a": {"b": 1}, "c": 1}, {"c": 2, "a": {"b": 2}, "d": 0}, ["a.b", "c", "d"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": None}, {}, ["a"]),
        ({"a": {"repr": "nan"}}, {"a": {"repr": "nan"}}, []),
    ],
)
def test_differences_are_key_paths(a: Any, b: Any, expected: list[str]) -> None:
    assert [found.path for found in differences(a, b)] == expected


def test_a_difference_has_both_values() -> None:
    found = differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}})
    assert found == [("a.b", 1, 3), ("c", 2, MISSING)]


def test_classes_of_a_config_file_are_called_after_the_file_wherever_it_lies(tmp_path: Path) -> None:
    text = "class Net: pass\ndef make(): pass\nconfig = {'class': Net, 'make': make, 'made': Net()}"
    found = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "my-config.py"
        path.parent.mkdir()
        path.write_text(text)
        found.append(as_json(load_config(path)))
    assert found[0] == found[1]
    assert found[0] == {"class": "my-config.Net", "make": "my-config.make", "made": {"repr": "<my-config.Net object>"}}
