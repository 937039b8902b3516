"""``endoscope pages show``: one datapoint, with honest numbers."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.commands.captured import Captured, Run, flip_byte

Point = collections.namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Box:
    side: float


@pytest.fixture
def show(tmp_path: Path, captured: Captured, run: Run) -> Any:
    """``show(value)``: what ``--json`` says of it."""

    def show(value: Any) -> Any:
        folder = tmp_path / f"run_{len(list(tmp_path.iterdir()))}"
        captured(folder, {0: {"value": value}})
        result = run("pages", "show", folder, 0, "--debugger", "given", "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["debuggers"]["given"]["items"]["value"]

    return show


def test_statistics_are_those_of_the_layer_output(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path / "debugger", {17: None, 18: None})
    result = run("pages", "show", tmp_path, 18, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert (facts["capture"], facts["datapoint"]) == ("debugger", 18)
    shown = facts["debuggers"]["features"]["items"]["feature_map"]
    expected = F.conv2d(captured.image(18), captured.model.conv.weight.detach()).flatten().tolist()
    assert (shown["type"], shown["dtype"], shown["shape"]) == ("tensor", "float32", [1, 4, 4, 4])
    assert (shown["min"], shown["max"]) == (min(expected), max(expected))
    assert shown["mean"] == pytest.approx(math.fsum(expected) / len(expected), rel=1e-12)
    assert (shown["non_finite"], shown["over"]) == (0, "values")


def test_non_finite_values_show_in_the_numbers_and_are_counted(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: torch.tensor([1.0, math.inf, 3.0]), 1: torch.tensor([1.0, math.nan, math.inf])})
    shown = [json.loads(run("pages", "show", tmp_path, k, "--json").stdout)["debuggers"]["given"] for k in (0, 1)]
    names = ("min", "mean", "max", "nan", "inf", "non_finite")
    assert [shown[0][k] for k in names] == [1.0, "Infinity", "Infinity", 0, 1, 1]
    assert [shown[1][k] for k in names] == ["NaN", "NaN", "NaN", 1, 1, 2]
    assert "min 1  mean Infinity  max Infinity  1 non-finite" in run("pages", "show", tmp_path, 0).stdout


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([math.nan, math.inf]), ("NaN", "NaN", "NaN", 2, "values")),
        (torch.zeros(0, 3), (None, None, None, 0, "values")),
        (torch.tensor(4.5), (4.5, 4.5, 4.5, 0, "values")),
        (torch.tensor([True, False, True, True]), (0, 0.75, 1, 0, "values")),
        (torch.tensor([2**62, 2**62 + 2]), (2**62, float(2**62), 2**62 + 2, 0, "values")),
        (torch.tensor([1, 255], dtype=torch.uint8), (1, 128.0, 255, 0, "values")),
        (torch.tensor([2**63, 0], dtype=torch.uint64), (0, 2.0**62, 2**63, 0, "values")),
        (torch.tensor([1.5, -2.5]).bfloat16(), (-2.5, -0.5, 1.5, 0, "values")),
        (torch.tensor([1.5, -2.5]).to(torch.float8_e5m2), (-2.5, -0.5, 1.5, 0, "values")),
        (torch.tensor([3 + 4j, 0]), (0.0, 2.5, 5.0, 0, "magnitudes")),
        (np.array([[1, 2], [3, 6]], dtype=np.int16), (1, 3.0, 6, 0, "values")),
    ],
    ids=lambda v: str(getattr(v, "dtype", "")),
)
def test_statistics_of_every_kind(show: Any, value: Any, expected: tuple[Any, ...]) -> None:
    facts = show(value)
    assert tuple(facts[k] for k in ("min", "mean", "max", "non_finite", "over")) == expected
    assert facts["shape"] == list(value.shape)


def test_the_mean_of_values_whose_sum_leaves_the_range(show: Any) -> None:
    assert show(torch.tensor([1e308, 1.5e308], dtype=torch.float64))["mean"] == pytest.approx(1.25e308)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_sparse_and_quantized_tensors_say_what_their_numbers_are_of(show: Any) -> None:
    sparse = show(torch.tensor([[0.0, 2.0], [4.0, 0.0]]).to_sparse())
    assert (sparse["layout"], sparse["stored"], sparse["mean"]) == ("sparse_coo", 2, 3.0)
    assert sparse["over"] == "stored values"
    quantized = show(torch.quantize_per_tensor(torch.tensor([0.0, 1.0]), 0.5, 0, torch.qint8))
    assert (quantized["max"], quantized["over"]) == (1.0, "dequantized values")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, {"type": "int", "value": 3}),
        (True, {"type": "bool", "value": True}),
        ("text", {"type": "str", "value": "text"}),
        (math.nan, {"type": "float", "value": "NaN"}),
        (-math.inf, {"type": "float", "value": "-Infinity"}),
        (np.float32(1.5), {"type": "float32", "value": 1.5}),
        (b"abc", {"type": "bytes", "length": 3}),
        (2 + 1j, {"type": "complex", "value": "(2+1j)"}),
        (datetime.date(2024, 2, 29), {"type": "date", "value": "2024-02-29"}),
        (Path("a/b"), {"type": "PosixPath", "value": "a/b"}),
        ([1, 2.5, "x", math.inf], {"type": "list", "length": 4, "values": [1, 2.5, "x", "Infinity"]}),
        (
            (1, (2,)),
            {
                "type": "tuple",
                "length": 2,
                "items": [{"type": "int", "value": 1}, {"type": "tuple", "length": 1, "values": [2]}],
            },
        ),
        (
            {1: "a", "1": "b"},
            {"type": "dict", "items": {"1": {"type": "str", "value": "a"}, "1~2": {"type": "str", "value": "b"}}},
        ),
        ({"b", "a"}, {"type": "set", "length": 2, "values": ["a", "b"]}),
        (np.array(["x", "y"]), {"type": "text array", "shape": [2], "values": ["x", "y"]}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_values_other_than_tensors(show: Any, value: Any, expected: dict[str, Any]) -> None:
    assert show(value) == expected


def test_types_of_the_run_have_their_names(show: Any) -> None:
    assert show(Color.RED)["type"].endswith("Color")
    assert show(Color.RED)["value"] == "RED"
    assert show(Box(2.0))["items"] == {"side": {"type": "float", "value": 2.0}}
    assert show(Point(1, "b"))["items"] == {"x": {"type": "int", "value": 1}, "y": {"type": "str", "value": "b"}}
    assert show(object())["stored"] == "only the start of its repr"


def test_shortened_values_say_so(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: {"text": "y" * 500, "many": list(range(50)), "tensors": [torch.zeros(1)] * 40, "x": 1 / 3}})
    text = run("pages", "show", tmp_path, 0).stdout
    assert f'"{"y" * 120}… (120 of 500 characters)"' in text
    assert "[0, 1, 2, 3, 4, 5, … 44 more]  list of 50" in text
    assert "… 16 more; --json shows all" in text
    assert "x  0.333333\n" in text
    assert "rounded to 6 digits" in text
    facts = json.loads(run("pages", "show", tmp_path, 0, "--json").stdout)["debuggers"]["given"]["items"]
    assert facts["text"]["value"] == "y" * 500
    assert facts["many"]["values"] == list(range(50))
    assert len(facts["tensors"]["items"]) == 40
    assert facts["x"]["value"] == 1 / 3


def test_notes_are_shown(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: 1})
    facts = json.loads(run("pages", "show", tmp_path, 0, "--json").stdout)
    assert facts["notes"]["absent"] == {"unused": "the layer did not run in this forward (on this thread)"}
    assert (
        "unused  is absent: the layer did not run in this forward (on this thread)"
        in run("pages", "show", tmp_path, 0).stdout
    )


def test_the_last_epoch_is_used_and_named(tmp_path: Path, captured: Captured, run: Run) -> None:
    for epoch in (4, 10):
        captured(tmp_path / f"epoch_{epoch}" / "debugger", {0: {"epoch": epoch}})
    last = run("pages", "show", tmp_path, 0, "--json")
    assert json.loads(last.stdout)["epoch"] == 10
    assert last.stderr == "2 captures; using the last, epoch_10/debugger; choose another with --epoch\n"
    chosen = run("pages", "show", tmp_path, 0, "--epoch", 4, "--json")
    assert json.loads(chosen.stdout)["debuggers"]["given"]["items"]["epoch"]["value"] == 4
    assert chosen.stderr == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["99"], "no datapoint 99 in '{folder}', which holds 2 datapoints, 3 to 5"),
        (["3", "--epoch", "9"], "no pages of epoch 9 in '{tmp}'; its epochs with pages are 1"),
        (["3", "--debugger", "featurs"], "datapoint 3 has nothing from 'featurs'; closest: 'features'"),
        (["3", "--debugger", "q"], "datapoint 3 has nothing from 'q'; the debuggers are 'features', 'given'"),
        (
            ["3", "--debugger", "unused"],
            "datapoint 3 has nothing from 'unused': the layer did not run in this forward (on this thread)",
        ),
    ],
)
def test_a_missing_datapoint_epoch_or_debugger(
    tmp_path: Path, captured: Captured, run: Run, more: list[str], message: str
) -> None:
    folder = captured(tmp_path / "epoch_1" / "debugger", {3: 1, 5: 1})
    result = run("pages", "show", tmp_path, *more)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {message.format(folder=folder, tmp=tmp_path)}\n"


def test_pickle_pages_are_refused_with_advice(tmp_path: Path, run: Run) -> None:
    (tmp_path / "page_0.pkl").write_bytes(b"")
    result = run("pages", "show", tmp_path, 0)
    assert result.exit_code == 2
    assert f"endoscope pages import {tmp_path} NEW_DIR --trust" in result.stderr


def test_an_empty_folder_is_an_error(tmp_path: Path, run: Run) -> None:
    result = run("pages", "show", tmp_path, 0)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: no captures in")


def test_a_damaged_debugger_does_not_hide_the_others(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: {"x": 1}, 1: {"x": 1}})
    flip_byte(tmp_path, record=1)
    result = run("pages", "show", tmp_path, 1)
    assert result.exit_code == 1
    assert "features  damaged: " in result.stdout
    assert "page_0.safetensors, record 1, datapoint 1: checksum" in result.stdout
    assert "given  dict" in result.stdout
    assert run("pages", "show", tmp_path, 0).exit_code == 0


def test_a_damaged_line_is_an_error(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: {"x": 1}, 1: {"x": 1}})
    data = (tmp_path / "page_0.jsonl").read_bytes()
    (tmp_path / "page_0.jsonl").write_bytes(data.replace(b'"idx":1', b'"idx":8'))
    result = run("pages", "show", tmp_path, 1)
    assert result.exit_code == 1
    assert "page_0.jsonl, record 1, datapoint 1: checksum" in result.stderr


def test_text_from_a_run_cannot_command_the_terminal(tmp_path: Path, captured: Captured, run: Run) -> None:
    evil = "\x1b]0;owned\x07[bold]\u202e"
    captured(tmp_path, {0: {evil: evil, "nested": [evil, {"a": evil}]}})
    text = run("pages", "show", tmp_path, 0).stdout
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "\\x1b]0;owned\\x07[bold]\\u202e" in text
