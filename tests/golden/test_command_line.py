"""What the command line prints, word for word; and its tables agree with their JSON twins.

``pytest tests/golden --update-golden`` writes the expected texts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.filesize import decimal
from tests.golden.masking import masked
from tests.runners.training import config, evaluation

from endoscope.cli import main
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer

RUNS = Path(__file__).parents[1] / "earlier_versions" / "0.1.0" / "runs"
NAMES = ("evaluation", "own_loop", "train")
COMMANDS = ("", "demo", "eval", "train", "view", "pages", *(f"pages {name}" for name in (
    "list", "show", "verify", "export", "import")))  # fmt: skip

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUNS, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def facts(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, golden: Golden) -> None:
    golden("-".join(["help", *command.split()]), printed(*command.split(), "--help"))


# ---------------------------------------------------------------- pages list
def rows(table: str) -> list[dict[str, str]]:
    """The rows of `endoscope pages list`, by the names of the columns; columns are two blanks apart."""
    lines = [line for line in table.splitlines() if line.strip()]
    names = lines[0].split()
    assert set(lines[1].strip()) == {"─"}
    return [dict(zip(names, re.split(r"  +", line.strip()), strict=True)) for line in lines[2:-1]]


def differences(table: str, captures: list[dict[str, Any]]) -> list[str]:
    """Where the table and the JSON twin of `endoscope pages list` disagree."""
    pairs = [
        (f"{name} of {capture['capture']}", row[name], str(capture[name]))
        for row, capture in zip(rows(table), captures, strict=True)
        for name in ("capture", "pages", "records", "datapoints", "state", "dropped", "damaged")
    ]
    sizes = [("size", row["size"], decimal(c["bytes"])) for row, c in zip(rows(table), captures, strict=True)]
    return [f"{what}: {shown}, not {fact}" for what, shown, fact in pairs + sizes if shown != fact]


@pytest.mark.parametrize("run", NAMES)
def test_pages_list(run: str, golden: Golden) -> None:
    table = printed("pages", "list", run)
    golden(f"pages-list-{run}", table)
    captures = facts("pages", "list", run)["captures"]
    assert differences(table, captures) == []
    for capture in captures:
        folder = Path(run, capture["capture"])
        assert capture["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
        lines = [json.loads(line) for page in folder.glob("page_*.jsonl") for line in page.read_text().splitlines()]
        assert capture["records"] == sum("idx" in line for line in lines)


def test_twin_a_wrong_number_in_the_table_is_noticed() -> None:
    table = printed("pages", "list", "evaluation")
    captures = facts("pages", "list", "evaluation")["captures"]
    captures[0]["records"] += 1
    assert differences(table, captures) == ["records of debugger: 6, not 7"]


# ---------------------------------------------------------------- pages verify
@pytest.mark.parametrize("run", NAMES)
def test_pages_verify(run: str, golden: Golden) -> None:
    """The summary's totals are the sums of the columns of `pages list`."""
    summary = printed("pages", "verify", run)
    golden(f"pages-verify-{run}", summary)
    table = rows(printed("pages", "list", run))
    pages, datapoints = (sum(int(row[name]) for row in table) for name in ("pages", "datapoints"))
    nbytes = sum(c["bytes"] for c in facts("pages", "list", run)["captures"])
    assert summary.startswith(f"captures {len(table)}, pages {pages}, datapoints {datapoints}, {decimal(nbytes)}: ")


# ---------------------------------------------------------------- pages show
def tensors(value: Any) -> list[dict[str, Any]]:
    """Every tensor and array among the facts of a datapoint, in the order in which they are printed."""
    if isinstance(value, dict):
        if value.get("type") in ("tensor", "array"):
            return [value]
        value = list(value.values())
    return [found for item in value for found in tensors(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("run", NAMES)
def test_pages_show(run: str, golden: Golden) -> None:
    text = printed("pages", "show", run, "0")
    golden(f"pages-show-{run}", text)
    lines = re.findall(r"(?:tensor|array) \w+ \[.*?\].*", text)
    shown = tensors(facts("pages", "show", run, "0")["debuggers"])
    assert len(lines) == len(shown) > 0
    for line, tensor in zip(lines, shown, strict=True):
        assert line.startswith(f"{tensor['type']} {tensor['dtype']} {tensor['shape']}")
        for name in ("min", "mean", "max"):
            number = re.search(rf"  {name} (\S+)", line)
            assert (number is None) == (tensor[name] is None)
            assert number is None or float(number[1]) == pytest.approx(float(tensor[name]), rel=1e-5, nan_ok=True)
        assert (f"  {tensor['non_finite']} non-finite" in line) == (tensor["non_finite"] > 0)


# ---------------------------------------------------------------- train and eval
def test_a_training_and_an_evaluation(tmp_path: Path, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers are masked: they differ from machine to machine in their last digits."""
    SupervisedTrainer(config(tmp_path / "run", epochs=2)).run()
    golden("train", masked(capsys.readouterr().out))
    SupervisedEvaluator({**evaluation(tmp_path / "eval"), "checkpoint": str(tmp_path / "run")}).run()
    golden("eval", masked(capsys.readouterr().out))
