"""``endoscope train`` and ``endoscope eval``: output and exit codes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click.testing
import pytest
from click.testing import CliRunner

from endoscope.cli import main
from endoscope.runs.scores import read_scores

ROOT = Path(__file__).parents[2]

CONFIG = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
import torch
from tests.runners.training import Blobs, Net, config as make, evaluation, node

here = Path({here!r})
{body}
config = {{**evaluation(here / "run"), **make(here / "run", epochs=1)}}
config.update({changed})
"""


@pytest.fixture(autouse=True)
def _the_path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config file adds its folder to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(folder: Path, name: str = "trial", *, body: str = "", changed: str = "{}") -> Path:
    path = folder / f"{name}.py"
    path.write_text(CONFIG.format(root=str(ROOT), here=str(folder), body=body, changed=changed))
    return path


def invoke(*arguments: str | Path) -> click.testing.Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_train_then_eval(tmp_path: Path) -> None:
    config = write(tmp_path)
    trained = invoke("train", config, "--set", "epochs=2")
    assert trained.exit_code == 0
    *epochs, last = trained.stdout.splitlines()
    assert [line.split("   ")[0] for line in epochs] == ["epoch 0", "epoch 1"]
    assert last == f"to look at it:  endoscope view {tmp_path / 'run'}"
    assert trained.stderr == ""
    again = invoke("train", "--config-filepath", config, "--set", "epochs=2")
    assert (again.exit_code, again.stdout.count("is finished: 2 epochs")) == (0, 1)
    scored = invoke("eval", config, "--set", f"work_dir={tmp_path / 'eval'}", "--set", f"checkpoint={tmp_path / 'run'}")
    assert scored.exit_code == 0
    assert scored.stdout.startswith("23 datapoints   accuracy ")
    validation = read_scores(tmp_path / "run" / "epoch_1" / "validation_scores.json")
    assert read_scores(tmp_path / "eval" / "evaluation_scores.json").aggregated == validation.aggregated


OWN_KEYS = """
from dataclasses import dataclass
from endoscope.runners import Settings, SupervisedTrainer

@dataclass(frozen=True, kw_only=True)
class OwnSettings(Settings):
    margin: float = 0.5

class Own(SupervisedTrainer):
    settings_class = OwnSettings

    def _train_step(self, datapoint):
        return super()._train_step(datapoint) * self.settings.margin
"""


def test_a_key_of_a_custom_runner_can_be_set(tmp_path: Path) -> None:
    config = write(tmp_path, body=OWN_KEYS, changed="runner=Own")
    assert invoke("train", config, "--set", "margin=0").exit_code == 0
    losses = json.loads((tmp_path / "run" / "epoch_0" / "training_losses.json").read_text())["loss"]
    assert set(losses) == {0.0}
    for setting, message in (
        ("margin=a", "margin: found 'a'; expected a number"),
        ("margn=1", "margn: the config has no key 'margn'; closest: 'margin'"),
    ):
        result = invoke("train", config, "--set", setting)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_the_runner_can_be_set_by_its_path_with_its_keys(tmp_path: Path) -> None:
    config = write(tmp_path, "with_runner", body=OWN_KEYS)
    assert invoke("train", config, "--set", "margin=0", "--set", "runner=with_runner.Own").exit_code == 0
    losses = json.loads((tmp_path / "run" / "epoch_0" / "training_losses.json").read_text())["loss"]
    assert set(losses) == {0.0}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["runner"] == "with_runner.Own"


def test_an_interruption_while_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "endoscope.runners.config.file":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "endoscope.runners.config.file")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    result = invoke("train", write(tmp_path))
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_a_folder_with_spaces_and_non_ascii_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = write(tmp_path)
    for _ in range(2):
        assert invoke("train", config, "--set", "work_dir=ein Ordner/ü…日").exit_code == 0
    assert (tmp_path / "ein Ordner" / "ü…日" / "epoch_0" / "checkpoint.pt").is_file()


@pytest.mark.parametrize("job", ["train", "eval"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no config file; expected: endoscope "),
        (["{trial}", "--config-filepath", "{trial}"], "two config files; give CONFIG or"),
        (["{here}/trail.py"], "closest: 'trial.py'"),
        (["{here}"], "is a directory"),
        (["{here}/raises.py"], "raises.py, line 2: ZeroDivisionError: division by zero"),
        (["{here}/syntax.py"], "syntax.py, line 1: SyntaxError"),
        (["{here}/empty.py"], "defines no 'config'"),
        (["{trial}", "--set", "epochs"], "'epochs' is not an override; expected key=value"),
        (["{trial}", "--set", "seeed=3"], "the config has no key 'seeed'; closest: 'seed'"),
        (["{trial}", "--set", "seed=x"], "seed: found 'x'; expected a whole number"),
        (["{trial}", "--set", "metric.arg.x=1"], "metric has no 'arg'"),
        (["{trial}", "--set", "model.args.dropuot=1"], "model.args.dropuot"),
        (["{trial}", "--set", "model=None"], "model: found None"),
        (
            ["{trial}", "--set", "runner=x"],
            "runner: found 'x'; expected a class or its path, or None; No module named 'x'",
        ),
        (["{trial}", "--set", "runner=torch.nn.Linear"], "expected a subclass of endoscope.runners.Base"),
        (["{trial}", "--set", "runner=torch.nn.Linear"], "--set runner=None uses Supervised"),
        (["{trial}", "--set", "class_names=[red, green]"], "class_names: '[red, green]' starts like a Python list"),
        (["{trial}", "--set", "work_dir={trial}"], "work_dir: cannot make the folder"),
        (["{trial}", "--set", "work_dir={trial}/x"], "work_dir: cannot make the folder"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(job: str, arguments: list[str], message: str, tmp_path: Path) -> None:
    trial = write(tmp_path)
    (tmp_path / "raises.py").write_text("a = 0\nb = 1 / a\n")
    (tmp_path / "syntax.py").write_text("def f(\n")
    (tmp_path / "empty.py").write_text("")
    result = invoke(job, *(a.format(trial=trial, here=tmp_path) for a in arguments))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_evaluation_without_its_keys(tmp_path: Path) -> None:
    result = invoke("eval", write(tmp_path, body="evaluation = lambda *_: {}"))
    assert (result.exit_code, result.stderr[:30]) == (2, "Error: eval_dataset: missing; ")


def test_what_cannot_be_built_is_a_message_that_names_key_and_line(tmp_path: Path) -> None:
    body = "class Mine(Net):\n    def __init__(self):\n        raise ValueError('mine')"
    result = invoke("train", write(tmp_path, body=body, changed="model=node(Mine)"))
    assert result.exit_code == 2
    assert "model: it could not be built: ValueError: mine (" in result.stderr
    assert "line " in result.stderr


def test_an_error_in_user_code_keeps_its_traceback(tmp_path: Path) -> None:
    body = "class Mine(Net):\n    def forward(self, x):\n        raise ValueError('mine')"
    result = invoke("train", write(tmp_path, body=body, changed="model=node(Mine)"))
    assert isinstance(result.exception, ValueError)
    assert result.exception.__traceback__ is not None


def test_wrong_data_is_a_message(tmp_path: Path) -> None:
    body = "class Mine(Blobs):\n    def __getitem__(self, k):\n        return 'text'"
    result = invoke("train", write(tmp_path, body=body, changed="train_dataset=node(Mine, count=9)"))
    assert result.exit_code == 2
    assert "an item of the dataset is 'text'" in result.stderr


def test_one_line_for_what_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert logging.getLogger("endoscope").handlers == []  # whether and where to print is the program's choice
    body = """
from endoscope import ForwardDebugger, SequentialDebugger
class Failing(ForwardDebugger):
    def process_forward(self, module, input, output):
        raise ZeroDivisionError("in a debugger")
debugger = node(SequentialDebugger, debuggers_config=[
    {"name": "failing", "debugger_config": node(Failing, layer_name="a")}])
"""
    with caplog.at_level(logging.WARNING, "endoscope"):
        result = invoke("train", write(tmp_path, body=body, changed="debugger=debugger"))
    assert result.exit_code == 0
    messages = [r.getMessage() for r in caplog.records]
    assert any("in a debugger" in m for m in messages)
    assert len(messages) == len(set(messages))


# ---------------------------------------------------------------- signals
SLOW = """
class Slow(Net):
    def __init__(self):
        super().__init__()
        (here / "built").touch()
        time.sleep({build})
    def forward(self, x):
        (here / ("training" if self.training else "validation")).touch()
        time.sleep({pause})
        return super().forward(x)
loader = node(torch.utils.data.DataLoader, batch_size=8, num_workers={workers})
"""


def interrupted(
    folder: Path,
    stage: str,
    *numbers: signal.Signals,
    build: float = 0.0,
    pause: float = 0.1,
    workers: int = 0,
    job: str = "main",
) -> tuple[int, str]:
    """Start, wait for a stage, send signals to the whole process group; returns the exit code and stderr."""
    body = SLOW.format(build=build, pause=pause, workers=workers)
    config = write(folder, body=body, changed="model=node(Slow), train_dataloader=loader, epochs=50")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / f"{job}.py"), "--config-filepath", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 60
    while not (folder / stage).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    for number in numbers:
        os.killpg(process.pid, number)
        time.sleep(0.2)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def status(folder: Path) -> str:
    return str(json.loads((folder / "run" / "run.json").read_text())["status"])


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    assert interrupted(tmp_path, "built", signal.SIGINT, build=30.0) == (130, "interrupted\n")
    assert not (tmp_path / "run" / "run.json").exists()


def test_ctrl_c_in_validation(tmp_path: Path) -> None:
    code, err = interrupted(tmp_path, "validation", signal.SIGINT)
    assert (code, err) == (130, "interrupted by SIGINT; the same command resumes it after the last complete epoch\n")
    assert status(tmp_path) == "interrupted"


def test_ctrl_c_twice_does_not_wait_for_the_batch(tmp_path: Path) -> None:
    code, err = interrupted(tmp_path, "training", signal.SIGINT, signal.SIGINT, pause=30.0)
    assert (code, err) == (130, "interrupted\n")
    assert status(tmp_path) == "interrupted"


def test_a_sigterm_to_the_process_and_its_workers(tmp_path: Path) -> None:
    code, err = interrupted(tmp_path, "training", signal.SIGTERM, workers=2)
    assert (code, err) == (143, "interrupted by SIGTERM; the same command resumes it after the last complete epoch\n")
    assert status(tmp_path) == "interrupted"


def test_an_interrupted_evaluation_is_to_be_started_again(tmp_path: Path) -> None:
    code, err = interrupted(tmp_path, "validation", signal.SIGTERM, job="eval", pause=0.5)
    assert (code, err) == (143, "interrupted by SIGTERM; start it again\n")
