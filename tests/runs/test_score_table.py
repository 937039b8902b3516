"""Score files as arrays: the same numbers as `read_scores` gives, whatever the length and layout."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endoscope.runs import score_table
from endoscope.runs.files import Files
from endoscope.runs.score_table import ScoreTable, read_table
from endoscope.runs.scores import ScoreNotFoundError, Scores, encode, read_scores, write_scores

from .folders import NAN, SCORES

INF = math.inf


def read(folder: Path, text: str | bytes) -> tuple[ScoreTable | None, list[str]]:
    (folder / "s.json").write_bytes(text.encode() if isinstance(text, str) else text)
    files = Files(folder)
    return files.read("s.json", read_table), [p.removeprefix("s.json: ") for p in files.problems]


def table_of(folder: Path, scores: Scores) -> ScoreTable:
    table, problems = read(folder, encode(scores))
    assert table is not None and not problems, problems
    return table


def rows(table: ScoreTable) -> dict[int, dict[str, float]]:
    """As in `Scores`."""
    return {
        int(idx): {
            name: float(values[k])
            for name, values in table.values.items()
            if name not in table.missing or not table.missing[name][k]
        }
        for k, idx in enumerate(table.indices)
    }


def test_the_numbers_of_a_file(tmp_path: Path) -> None:
    write_scores(SCORES, tmp_path, split="validation", epoch=4)
    table = Files(tmp_path).read("validation_scores.json", read_table)
    assert table is not None
    assert (table.split, table.epoch) == ("validation", 4)
    assert (table.directions, table.non_finite) == (SCORES.directions, SCORES.non_finite)
    assert table.aggregated["macro_f1"] == 0.25 and math.isnan(table.aggregated["loss"])
    assert table.indices.tolist() == [17, 18, 101]
    assert table.indices.dtype == np.int64
    assert list(table.values) == ["accuracy", "loss"]
    np.testing.assert_array_equal(table.values["accuracy"], [1.0, 0.0, 0.5])
    np.testing.assert_array_equal(table.values["loss"], [0.25, NAN, 3.0])
    assert table.missing == {}


names = st.sampled_from(["a", "b", "ä", "c/1"])
values = st.floats(allow_nan=False)
indices = st.integers(-(2**63), 2**63 - 1)


table_rows = st.dictionaries(indices, st.dictionaries(names, values, max_size=4), max_size=12)


@given(table_rows, st.integers(150, 400))
def test_any_rows_come_back_whatever_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, per_datapoint: dict[int, dict[str, float]], piece: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    scores = Scores(dict.fromkeys(["a", "b", "ä", "c/1"], "lower"), {}, {}, per_datapoint)
    text = encode(scores)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_table, "_PIECE", piece)
        for other in (json.dumps(json.loads(text)), json.dumps(json.loads(text), indent=1), text):
            if other is text and per_datapoint:
                patch.setattr(score_table, "JSON_LIMIT", len(text) - 1)  # in pieces, or not at all
            table, problems = read(folder, other)
            assert table is not None, problems
            assert rows(table) == per_datapoint
            assert table.indices.tolist() == sorted(per_datapoint)


def test_scores_that_some_datapoints_lack(tmp_path: Path) -> None:
    some = {1: {"a": 1.0}, 2: {"b": NAN, "a": 2.0}, 3: {}}
    table = table_of(tmp_path, Scores({"a": "lower", "b": "lower"}, {}, {}, some))
    np.testing.assert_array_equal(table.values["b"], [NAN, NAN, NAN])
    assert table.missing["b"].tolist() == [True, False, True]
    assert table.missing["a"].tolist() == [False, False, True]


# ---------------------------------------------------------------- malformed
def as_dict(**changes: Any) -> str:
    return json.dumps({**json.loads(encode(SCORES)), **changes})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON"),
        ("[]", "its format is not 'endoscope-scores'"),
        ("[" * 100_000, "it is nested deeper"),
        (b"\xff" + encode(SCORES).encode(), "it is not UTF-8"),
        (encode(SCORES).replace('"17"', '"18"'), "the key '18' occurs twice"),
        (encode(SCORES).replace('"epoch"', '"split"'), "the key 'split' occurs twice"),
        (encode(SCORES).replace('"loss": 0.25', '"accuracy": 0.25'), "the key 'accuracy' occurs twice"),
        (encode(SCORES).replace("3.0}", "null}"), "per_datapoint has a score that is not a number"),
        (encode(SCORES).replace("3.0}", "true}"), "per_datapoint has a score that is not a number"),
        (encode(SCORES).replace("3.0}", "[[1]]}"), "per_datapoint has a score that is not a number"),
        (encode(SCORES).replace("3.0}", "9" * 400 + "}"), "int too large to convert to float"),
        (encode(SCORES).replace('"17"', '"017"'), "per_datapoint has a key that is not a datapoint's index"),
        (encode(SCORES).replace('"17"', '"1_7"'), "per_datapoint has a key that is not a datapoint's index"),
        (encode(SCORES).replace('"17"', f'"{2**63}"'), "per_datapoint has a key that is not a datapoint's index"),
        (encode(SCORES).replace('"17"', f'"{"9" * 5000}"'), "per_datapoint has a key that is not a datapoint's index"),
        (as_dict(per_datapoint=[]), "per_datapoint is list, expected an object"),
        (as_dict(per_datapoint={"1": 5}), "per_datapoint.1 is int, expected an object"),
        (as_dict(directions={"loss": "lower"}), "directions has no entry for 'accuracy'"),
        (as_dict(version=2), "it has version 2, this Endoscope reads 1; upgrade Endoscope"),
        (as_dict(aggregated={"a": 10**400}), "aggregated.a is '1000"),
        (encode(SCORES) + "more", "it is not JSON"),
        (encode(SCORES).replace("},\n", "}\n"), "it is not JSON"),
    ],
)
def test_malformed_files_are_reported(text: str | bytes, problem: str, tmp_path: Path) -> None:
    table, (message,) = read(tmp_path, text)
    assert table is None
    assert message.startswith(problem)


@pytest.mark.parametrize("number", ["01", ".5", "1.", "+1", "1_0", "nan", "inf", "0x1", "1e", "--1", "", "1 2"])
def test_only_json_numbers_are_numbers(number: str, tmp_path: Path) -> None:
    table, (message,) = read(tmp_path, encode(SCORES).replace("3.0}", number + "}"))
    assert table is None
    assert message.startswith("it is not JSON")


@pytest.mark.parametrize("number", ["0", "-0", "12", "-7.25", "1e5", "1E-7", "2.5e+300", "1e999", "NaN", "-Infinity"])
def test_numbers_are_those_of_json(number: str, tmp_path: Path) -> None:
    table, problems = read(tmp_path, encode(SCORES).replace("3.0}", number + "}"))
    assert table is not None and not problems
    np.testing.assert_array_equal(table.values["loss"], [0.25, NAN, float(json.loads(number))])
    assert math.copysign(1, table.values["loss"][2]) == math.copysign(1, float(json.loads(number)))


def test_names_with_signs_of_patterns(tmp_path: Path) -> None:
    odd = {'a"b': 1.0, "c.*": 2.0, "\\d+": 3.0, "{x}": 4.0}
    scores = Scores(dict.fromkeys(odd, "higher"), {}, {}, {1: odd, 2: {name: -x for name, x in odd.items()}})
    assert rows(table_of(tmp_path, scores)) == scores.per_datapoint


def test_every_truncation_is_reported(tmp_path: Path) -> None:
    text = encode(SCORES).rstrip()
    for end in range(len(text)):
        table, problems = read(tmp_path, text[:end])
        assert table is None
        assert len(problems) == 1


def test_too_many_sets_of_scores(tmp_path: Path) -> None:
    many = {k: {f"s{k}": 1.0} for k in range(65)}
    scores = Scores({f"s{k}": "lower" for k in range(65)}, {}, {}, many)
    assert read(tmp_path, encode(scores)) == (None, ["its datapoints have more than 64 different sets of scores"])


def test_too_many_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "_CELLS", 5)
    assert read(tmp_path, encode(SCORES)) == (None, ["2 scores of 3 datapoints are more than are read"])


def test_a_file_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "LIMIT", 100)
    assert read(tmp_path, encode(SCORES))[1] == [f"it has {len(encode(SCORES))} bytes; at most 100 are read"]


def test_a_long_file_is_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond JSON_LIMIT only the documented layout is read, piece by piece."""
    monkeypatch.setattr(score_table, "JSON_LIMIT", 400)
    monkeypatch.setattr(score_table, "_PIECE", 256)
    monkeypatch.setattr(score_table, "_AT_ONCE", 256)
    scores = Scores(SCORES.directions, {}, {}, {k: {"loss": k / 7} for k in range(1000)})
    assert rows(table_of(tmp_path, scores)) == scores.per_datapoint
    for text, problem in (
        (json.dumps(json.loads(encode(scores))), "it has no line for per_datapoint"),
        (encode(scores)[:-3], "it ends before its last line"),
        (encode(scores).replace("},\n", "}\n", 1), "delimiter"),
        (encode(scores).replace("\n }\n}\n", "\n }\n,}\n"), "it continues after per_datapoint"),
        (encode(scores).replace(",\n ", " "), "it has no line for per_datapoint"),
        (encode(scores).replace('  "500"', "  " + " " * 1000 + '"500"'), "there is no comma and no end in "),
    ):
        table, (message,) = read(tmp_path, text)
        assert table is None
        assert message.startswith("it does not have the layout of a score file: ") and problem in message


def test_names_can_be_encoded(tmp_path: Path) -> None:
    scores = Scores({"\udcff": "lower"}, {"\udcff": 1.0}, {}, {1: {"\udcff": 2.0}})
    table = table_of(tmp_path, scores)
    assert (list(table.values), list(table.directions)) == (["?"], ["?"])


# ---------------------------------------------------------------- worst
@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_the_worst_come_first_as_with_scores(name: str, tmp_path: Path) -> None:
    values = [1.0, NAN, -INF, INF, 1.0, NAN, 0.0, -0.0]
    scores = Scores(SCORES.directions, {}, {}, {100 - k: {name: v} for k, v in enumerate(values)})
    table = table_of(tmp_path, scores)
    order = table.worst_first(name)
    path = write_scores(scores, tmp_path, split="evaluation")
    assert table.indices[order].tolist() == [idx for idx, _ in read_scores(path).worst(name, 10)]


def test_datapoints_without_the_score_come_last(tmp_path: Path) -> None:
    some = {1: {"b": 1.0}, 2: {"a": NAN}, 3: {"a": 1.0}}
    table = table_of(tmp_path, Scores({"a": "lower", "b": "lower"}, {}, {}, some))
    assert table.indices[table.worst_first("a")].tolist() == [2, 3, 1]


def test_a_score_that_no_datapoint_has(tmp_path: Path) -> None:
    with pytest.raises(ScoreNotFoundError, match="no datapoint has the score 'los'; closest: 'loss'"):
        table_of(tmp_path, SCORES).worst_first("los")
    with pytest.raises(ScoreNotFoundError, match="no datapoint has the score 'x'; its scores are 'accuracy', 'loss'"):
        table_of(tmp_path, SCORES).worst_first("x")
