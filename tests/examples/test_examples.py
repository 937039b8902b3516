"""Every example runs by its README's lines (shortened), learns, and leaves what it promises."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.warm import WarmProcess

from endoscope import load_debug_outputs
from endoscope.pages.verify import verify_folder
from endoscope.runs.scores import read_scores

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    train: list[str]
    eval: list[str]
    debuggers: set[str]
    better: str
    """A score that has to get better."""


SHORTENED = {
    "digits": Example(
        ["epochs=2"],
        [],
        {"feature_maps", "activations/relu1", "activations/relu2", "gradcam"},
        "accuracy",
    ),
    "shapes": Example(
        ["epochs=2", "train_dataset.args.count=160", "val_dataset.args.count=16"],
        ["eval_dataset.args.count=16"],
        {"bottom", "way_up/up1", "way_up/up2", "way_up/up3", "triangle"},
        "mean_iou",
    ),
    "text": Example(
        ["epochs=2", "train_dataset.args.stride=64", "val_dataset.args.stride=640"],
        ["eval_dataset.args.stride=640"],
        {"attention/blocks.0.attention", "attention/blocks.1.attention"}
        | {"activations/blocks.0.mlp.1", "activations/blocks.1.mlp.1"},
        "accuracy",
    ),
}


def commands(name: str) -> list[list[str]]:
    """The lines of the README that run something, with our overrides."""
    text = (EXAMPLES / name / "README.md").read_text()
    train, evaluate = (shlex.split(line) for line in re.findall(r"^    endoscope (.*)$", text, re.MULTILINE))
    example = SHORTENED[name]
    return [
        train + [word for change in example.train for word in ("--set", change)],
        evaluate + [word for change in example.eval for word in ("--set", change)],
    ]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_example_is_tested_and_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(SHORTENED)
    listed = re.findall(r"^\| `(\w+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == folders


@pytest.mark.parametrize("name", SHORTENED)
def test_an_example(name: str, tmp_path: Path, warm: WarmProcess) -> None:
    example = SHORTENED[name]
    done = warm.run("tests.examples.running:run", folder=str(tmp_path), commands=commands(name), kill_after_s=100)
    assert done.said == ["train", "eval"], done.stderr
    trained, evaluated = tmp_path / "runs" / name, tmp_path / "runs" / f"{name}-eval"
    assert read(trained / "run.json")["status"] == read(evaluated / "run.json")["status"] == "finished"

    first, last = read(trained / "progress.json")["epochs"]
    assert last["loss"]["mean"] < 0.95 * first["loss"]["mean"]
    assert last["scores"][example.better] > first["scores"][example.better]
    assert (trained / "epoch_1" / "checkpoint.pt").is_file()

    scores = read_scores(evaluated / "evaluation_scores.json")
    assert all(math.isfinite(value) for key, value in scores.aggregated.items() if not key.startswith("iou/"))
    for folder in (trained / "epoch_1", evaluated):
        assert verify_folder(folder / "debugger") == []
    seen = load_debug_outputs(evaluated)
    assert sorted(seen) == sorted(scores.per_datapoint)
    some = seen[min(seen)]
    assert set(some) == example.debuggers
    assert not [held for held in some.values() if "error" in held]
    assert len(load_debug_outputs(evaluated / "datapoints")) == len(seen)


def test_a_character_looks_at_itself_and_those_before(tmp_path: Path, warm: WarmProcess) -> None:
    """Untrained, because the mask does not depend on it."""
    command = [
        "eval",
        "examples/text/eval_config.py",
        "--set",
        "eval_dataset.args.stride=6400",
        "--set",
        "checkpoint=None",
    ]
    done = warm.run("tests.examples.running:run", folder=str(tmp_path), commands=[command])
    assert done.said == ["eval"], done.stderr
    seen = load_debug_outputs(tmp_path / "runs" / "text-eval")
    held = seen[min(seen)]["attention/blocks.0.attention"]
    assert held["attention_map"].shape == (1, 4, 64, 64)
    assert held["attention_map"].triu(1).count_nonzero() == 0
    assert held["attention_stats"]["sums_to_one"]
