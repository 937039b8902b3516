from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.runners import scores as runners_scores
from endoscope.runs import scores as scores_module
from endoscope.runs.scores import (
    ScoreNotFoundError,
    Scores,
    ScoresError,
    ScoresFormatError,
    decode,
    encode,
    read_scores,
    score_label,
    write_scores,
)

NAN, INF = math.nan, math.inf
DOCUMENT = Path(__file__).parents[2] / "docs" / "scores.md"


def some(**values: float) -> Scores:
    """Scores of the datapoints 0, 1, ... for one name."""
    ((name, each),) = values.items()
    assert isinstance(each, list)
    return Scores({name: "lower" if name == "loss" else "higher"}, {}, {}, {i: {name: v} for i, v in enumerate(each)})


EXAMPLE = Scores(
    directions={"accuracy": "higher", "loss": "lower", "macro_f1": "higher"},
    aggregated={"accuracy": 0.5, "loss": NAN, "macro_f1": 1 / 3},
    non_finite={"accuracy": 0, "loss": 2},
    per_datapoint={
        2: {"accuracy": 1.0, "loss": NAN},
        17: {"accuracy": 0.0, "loss": INF},
        101: {"accuracy": 0.5, "loss": -INF},
    },
)


def as_dict(**changes: Any) -> dict[str, Any]:
    content = json.loads(encode(EXAMPLE))
    content.update(changes)
    return content  # type: ignore[no-any-return]


# ---------------------------------------------------------------- files
@pytest.mark.parametrize(("split", "epoch"), [("validation", 4), ("evaluation", None)])
def test_scores_come_back_from_their_file(tmp_path: Path, split: Any, epoch: int | None) -> None:
    path = write_scores(EXAMPLE, tmp_path, split=split, epoch=epoch)
    assert path == tmp_path / f"{split}_scores.json"
    back = read_scores(path)
    assert (back.split, back.epoch) == (split, epoch)
    assert encode(back).replace(f'"{split}"', "null").replace(f'"epoch": {epoch}', '"epoch": null') == encode(EXAMPLE)
    assert os.listdir(tmp_path) == [path.name]


names = st.text(min_size=1, max_size=8)
numbers = st.floats(allow_nan=False)


@given(st.dictionaries(st.integers(), st.dictionaries(names, numbers, max_size=3), max_size=5))
def test_any_names_indices_and_numbers_survive(per_datapoint: dict[int, dict[str, float]]) -> None:
    every = {name for each in per_datapoint.values() for name in each}
    scores = Scores(dict.fromkeys(every, "lower"), dict.fromkeys(every, 0.1), dict.fromkeys(every, 0), per_datapoint)
    back = decode(encode(scores))
    assert back == scores
    assert list(back.per_datapoint) == sorted(per_datapoint)


def test_the_file_has_the_documented_schema_with_one_line_per_datapoint(tmp_path: Path) -> None:
    text = write_scores(EXAMPLE, tmp_path, split="validation", epoch=4).read_text()
    assert text == (
        "{\n"
        ' "format": "endoscope-scores",\n'
        ' "version": 1,\n'
        ' "split": "validation",\n'
        ' "epoch": 4,\n'
        ' "directions": {"accuracy": "higher", "loss": "lower", "macro_f1": "higher"},\n'
        ' "aggregated": {"accuracy": 0.5, "loss": NaN, "macro_f1": 0.3333333333333333},\n'
        ' "non_finite": {"accuracy": 0, "loss": 2},\n'
        ' "per_datapoint": {\n'
        '  "2": {"accuracy": 1.0, "loss": NaN},\n'
        '  "17": {"accuracy": 0.0, "loss": Infinity},\n'
        '  "101": {"accuracy": 0.5, "loss": -Infinity}\n'
        " }\n"
        "}\n"
    )


def test_the_example_in_the_docs_can_be_read() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert encode(decode(example)) == example
    for key in json.loads(example):
        assert f"`{key}`" in DOCUMENT.read_text()


def test_a_failed_write_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_scores(EXAMPLE, tmp_path, split="validation", epoch=1)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_scores(EXAMPLE, tmp_path, split="validation", epoch=2)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split='test'; expected one of 'validation', 'evaluation'"):
        write_scores(EXAMPLE, tmp_path, split="test")  # type: ignore[arg-type]


# ---------------------------------------------------------------- malformed
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "Expecting value"),
        (b"\xff\xfe\x00", ""),
        ("[]", "its format is not 'endoscope-scores'"),
        ("[" * 100_000, ""),
        ({"format": "other"}, "its format is not 'endoscope-scores'"),
        ({"version": 2}, "it has version 2, this Endoscope reads 1; upgrade Endoscope"),
        ({"version": True}, "its version is True"),
        ({"version": "1"}, "its version is '1'"),
        ({"split": "test"}, "split is 'test'"),
        ({"epoch": 1.5}, "epoch is 1.5, expected a number or null"),
        ({"directions": None}, "directions is NoneType, expected an object"),
        ({"directions": {"a": "up"}}, "directions.a is 'up'; expected 'higher' or 'lower'"),
        ({"directions": {"a": []}}, "directions.a is '\\[\\]'; expected 'higher' or 'lower'"),
        ({"directions": {"loss": "lower"}}, "directions has no entry for 'accuracy'"),
        ({"aggregated": {"a": "1"}}, "aggregated.a is '1'; expected a number"),
        ({"aggregated": {"a": 10**400}}, "aggregated.a is '1000"),
        ({"non_finite": {"a": 0.5}}, "non_finite.a is '0.5'; expected a whole number, 0 or more"),
        ({"non_finite": {"a": -1}}, "non_finite.a is '-1'; expected a whole number, 0 or more"),
        ({"per_datapoint": []}, "per_datapoint is list, expected an object"),
        ({"per_datapoint": {"1": 2}}, "per_datapoint.1 is int, expected an object"),
        ({"per_datapoint": {"1": {"loss": None}}}, "per_datapoint.1.loss is 'None'; expected a number"),
        ({"per_datapoint": {"x": {}}}, "per_datapoint has the key 'x', expected a datapoint's index"),
        ({"per_datapoint": {"01": {}}}, "per_datapoint has the key '01'"),
        ({"per_datapoint": {"٣": {}}}, "per_datapoint has the key"),
    ],
)
def test_malformed_files_are_refused_with_file_and_cause(tmp_path: Path, text: Any, cause: str) -> None:
    path = tmp_path / "validation_scores.json"
    if isinstance(text, dict):
        text = json.dumps(as_dict(**text))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScoresFormatError, match=rf"validation_scores.json' holds no usable .*: .*{cause}") as raised:
        read_scores(path)
    assert isinstance(raised.value, EndoscopeError)
    assert isinstance(raised.value, ValueError)


def test_twin_the_well_formed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(as_dict()))
    assert encode(read_scores(path)) == encode(EXAMPLE)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    text = encode(EXAMPLE).rstrip()
    path = tmp_path / "scores.json"
    for end in range(len(text)):
        path.write_text(text[:end])
        with pytest.raises(ScoresFormatError):
            read_scores(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match="cannot read the scores in .*nowhere.json': No such file or directory"):
        read_scores(tmp_path / "nowhere.json")


def test_the_version_is_the_documented_one() -> None:
    assert f"version {scores_module.VERSION}" in DOCUMENT.read_text()


# ---------------------------------------------------------------- worst
def test_worst_respects_the_direction() -> None:
    assert some(accuracy=[0.5, 0.1, 0.9]).worst("accuracy", 2) == [(1, 0.1), (0, 0.5)]
    assert some(loss=[0.5, 0.1, 0.9]).worst("loss", 2) == [(2, 0.9), (0, 0.5)]


@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_a_nan_is_the_worst_and_ties_go_by_index(name: str) -> None:
    values = [1.0, NAN, -INF, INF, 1.0, NAN]
    worst = some(**{name: values}).worst(name, 10)
    middle = [2, 0, 4, 3] if name == "accuracy" else [3, 0, 4, 2]
    assert [idx for idx, _ in worst] == [1, 5, *middle]


def test_worst_of_none_or_fewer() -> None:
    assert some(loss=[1.0]).worst("loss", 0) == []
    assert some(loss=[1.0]).worst("loss", -1) == []
    assert some(loss=[]).worst("loss", 3) == []


@pytest.mark.parametrize("name", ["los", "macro_f1"])
def test_worst_of_a_score_that_no_datapoint_has(name: str) -> None:
    with pytest.raises(ScoreNotFoundError, match=f"the score '{name}'; (closest: 'loss'|its scores are)"):
        EXAMPLE.worst(name)


def test_the_other_import_path_has_the_same_objects() -> None:
    assert runners_scores.__all__ == scores_module.__all__
    for name in runners_scores.__all__:
        assert getattr(runners_scores, name) is getattr(scores_module, name)


# ---------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("iou/0", "iou/road"),
        ("iou/1", "iou/car"),
        ("iou/2", "iou/2"),
        ("iou/-1", "iou/-1"),
        ("iou/٣", "iou/٣"),
        ("iou/" + "9" * 5000, "iou/" + "9" * 5000),
        ("iou/x", "iou/x"),
        ("iou", "iou"),
        ("recall/1", "recall/1"),  # at one, not of class 1
        ("a/iou/1", "a/iou/1"),
    ],
)
def test_scores_of_a_class_have_its_name(name: str, label: str) -> None:
    assert score_label(name, by_class=["iou"], class_names=["road", "car"]) == label
    assert score_label(name, by_class=[], class_names=["road", "car"]) == name
    assert score_label(name, by_class=["iou"], class_names=None) == name
