"""Which configs resume a run, which are refused, and which changes are warned of."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runners.training import config, node

from endoscope.errors import ConfigError
from endoscope.runners.config.file import load_config
from endoscope.runners.loops.supervised import SupervisedTrainer
from endoscope.runners.state import same_run

ROOT = Path(__file__).parents[3]


class Own(SupervisedTrainer):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    SupervisedTrainer(config(folder, epochs=1, debugger=None)).run()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def resumed(run: Path, **changed: Any) -> SupervisedTrainer:
    trainer = SupervisedTrainer(config(run, **{"epochs": 2, "debugger": None, **changed}))
    assert trainer.epoch == 1
    return trainer


@pytest.mark.parametrize(
    "changed",
    [
        {"accumulate": 1, "clip_norm": None, "compile": False, "scheduler_step": "epoch", "precision": "float32"},
        {"runner": SupervisedTrainer},
        {"runner": same_run.DEFAULT_RUNNER},
        {"overwrite": True, "checkpoint": "x", "eval_dataset": [1]},
        {"save_datapoints": 3, "class_names": ["a", "b", "c"], "checkpoint_method": "all"},
    ],
)
def test_the_same_run(changed: dict[str, Any], run: Path) -> None:
    resumed(run, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 8}, "another seed: 7 there, 8 here\n"),
        ({"accumulate": 2}, "another accumulate: 1 there, 2 here"),
        ({"runner": Own}, r"another runner: \"endoscope\.runners.*SupervisedTrainer\" there, \".*same_run\.Own\" here"),
        ({"optimizer": node(torch.optim.Adam)}, r"another optimizer\.args\.lr: 0\.01 there, nothing here"),
        ({"scheduler": None}, r"another scheduler: \{\"class\": .*ExponentialLR.*\} there, null here"),
    ],
)
def test_another_run(changed: dict[str, Any], message: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=f"^work_dir: '.*run' holds a run with {message}"):
        resumed(run, **changed)


def test_a_config_that_cannot_be_read_does_not_pass(run: Path) -> None:
    for content in ("{", "[]"):
        (run / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json' cannot be read, .*\nrestore it, or delete it to resume"):
            resumed(run)
    (run / "config.json").unlink()
    with pytest.warns(UserWarning, match=r"'.*config\.json' is missing, so nothing checks that"):
        resumed(run)


@pytest.mark.parametrize(
    ("about", "changed", "message"),
    [
        ({}, {"torch_threads": 1}, "torch_threads: the run is resumed with 1 instead of None; its result may differ"),
        ({"world_size": 3}, {}, "world_size: the run is resumed with 1 instead of 3"),
        ({"device": "cuda:0"}, {}, "device: the run is resumed with cpu instead of cuda"),
    ],
)
def test_changes_that_affect_the_last_bits_are_warned_of_once(
    about: dict[str, Any], changed: dict[str, Any], message: str, run: Path
) -> None:
    (run / "run.json").write_text(json.dumps({**json.loads((run / "run.json").read_text()), **about}))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed(run, **changed)
    assert [str(one.message).startswith(message) for one in told] == [True]
    SupervisedTrainer(config(run, epochs=1, debugger=None, **changed))  # nothing is left to compute


def test_a_config_file_may_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(ROOT), *__import__("sys").path])
    text = f"""
from pathlib import Path
from tests.runners.training import Net, config as make, node
class Own(Net): pass
config = make(Path({str(tmp_path / "run")!r}), model=node(Own), epochs=1, debugger=None)
"""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my-config.py").write_text(text)
    SupervisedTrainer(load_config(tmp_path / "a" / "my-config.py")).run()
    assert SupervisedTrainer({**load_config(tmp_path / "b" / "my-config.py"), "epochs": 2}).epoch == 1


def test_the_default_runner_is_the_one_that_it_names() -> None:
    assert f"{SupervisedTrainer.__module__}.{SupervisedTrainer.__qualname__}" == same_run.DEFAULT_RUNNER
