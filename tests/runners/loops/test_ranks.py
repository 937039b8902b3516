"""Several processes under torchrun: every datapoint once, one score file, one merged capture, a clear end."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.runners.processes import CONFIG, ONE_THREAD, ROOT, TORCHRUN, finish, start, wait_for
from tests.runners.training import TRAIN, VAL, final

from endoscope import load_debug_outputs
from endoscope.runners.loops.distributed import Ranks, differing_gradients, lost_connection
from endoscope.runs.scores import read_scores

# A criterion with a buffer, of which each rank has its own until a validation.
COUNTING = """
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(3))

    def forward(self, outputs, labels):
        self.seen += torch.bincount(labels, minlength=3)
        return nn.functional.cross_entropy(outputs, labels, weight=self.seen.sum() / self.seen)

config["criterion"] = node(Counting)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on two ranks, and what it printed."""
    folder = tmp_path_factory.mktemp("two") / "run"
    return folder, finish(folder, 2, more=COUNTING)


def test_every_datapoint_once(uninterrupted: tuple[Path, str]) -> None:
    folder, out = uninterrupted
    assert out.count("epoch 2   training loss") == 1  # one rank prints
    for epoch in range(3):
        scores = read_scores(folder / f"epoch_{epoch}" / "validation_scores.json")
        assert list(scores.per_datapoint) == list(range(VAL))
    for capture in (folder / "epoch_1", folder / "epoch_2", folder / "datapoints", folder / "epoch_2" / "outputs"):
        captures = load_debug_outputs(capture)
        assert sorted(captures) == list(range(VAL))
        assert not captures.damage
    pages = {p.name for p in (folder / "epoch_2" / "debugger").glob("*.jsonl")}
    assert {f"page_0_rank_{r}.jsonl" for r in range(2)} <= pages
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["world_size"]) == ("finished", 2)
    steps = -(-TRAIN // 2)
    assert json.loads((folder / "progress.json").read_text())["epochs"][-1]["step"] == 3 * -(-steps // 8)
    assert not (folder / "epoch_0" / "checkpoint.pt").exists()


class Beside(Ranks):
    """Rank 0 of two; the other one has the gradients of another model."""

    other: ClassVar[torch.nn.Module]

    def gather(self, value: Any) -> list[Any]:
        alone = Ranks()
        seen: list[Any] = []
        object.__setattr__(alone, "gather", lambda sums: seen.append(sums) or [sums])
        differing_gradients(self.other, alone)
        return [value, *seen]

    def agreed(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda grad: None, ""),
        (lambda grad: grad.mul_(1 + 1e-7), ""),
        (lambda grad: grad.mul_(2), "of 'weight', on ranks 0 and 1"),
        (lambda grad: grad[0, 0].fill_(float("nan")), None),
        (lambda grad: grad[0, 0].fill_(float("inf")), None),
    ],
)
def test_gradients_are_compared(change: Any, expected: str | None) -> None:
    mine = torch.nn.Linear(4, 3)
    mine(torch.ones(2, 4)).square().sum().backward()
    assert mine.weight.grad is not None
    mine.weight.grad.copy_(torch.tensor([1.0, -1.0, 0.0])[:, None])  # of a last layer: they add up to 0
    Beside.other = copy.deepcopy(mine)
    for a, b in zip(mine.parameters(), Beside.other.parameters(), strict=True):
        assert a.grad is not None
        b.grad = a.grad.clone()
    change(Beside.other.weight.grad)
    assert differing_gradients(mine, Beside(0, 2)) == expected


def test_a_gradient_that_only_another_rank_has_differs() -> None:
    mine = torch.nn.Linear(4, 3)
    Beside.other = copy.deepcopy(mine)
    Beside.other(torch.ones(2, 4)).square().sum().backward()
    assert differing_gradients(mine, Beside(0, 2)) == "of 'weight', on ranks 0 and 1"


TRAINERS = """
import torch
from torch import nn
from endoscope.runners import SupervisedTrainer

class Direct(SupervisedTrainer):
    def _train_step(self, datapoint):
        with torch.no_grad():
            self.model(datapoint["inputs"])
        return self.criterion(self.network(datapoint["inputs"]), datapoint["labels"])

class ByHand(Direct):
    def _check_gradients(self):
        pass

    def _optimize(self):
        for p in self.network.parameters():
            torch.distributed.all_reduce(p.grad)
        super()._optimize()

class Half(Slow):
    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 3)

config.update({changed}, debugger=None)
"""


def test_a_trainer_may_share_gradients_itself(tmp_path: Path) -> None:
    finish(tmp_path / "run", 2, epochs=1, more=TRAINERS.format(changed="runner=ByHand"))
    assert final(tmp_path / "run", 0)["epoch"] == 0


def test_parameters_without_a_gradient(tmp_path: Path) -> None:
    finish(tmp_path / "run", 2, epochs=1, more=TRAINERS.format(changed="model=node(Half), unused_parameters=True"))
    assert final(tmp_path / "run", 0)["epoch"] == 0


def test_a_step_that_bypasses_the_wrapper_is_refused(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 2, more=TRAINERS.format(changed="runner=Direct"))
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "runner: after Direct._train_step the ranks have different gradients (of '" in err
    assert not (tmp_path / "run" / "epoch_0" / "checkpoint.pt").exists()


def pid_of(path: Path) -> int:
    """The rank writes it in every forward, so it may be empty for a moment."""
    until = time.monotonic() + 20
    while not (text := path.read_text()):
        assert time.monotonic() < until
    return int(text)


def kill_rank_1(folder: Path, process: subprocess.Popen[str]) -> tuple[str, str]:
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    os.kill(pid_of(folder.parent / "pid_1"), signal.SIGKILL)
    return process.communicate(timeout=100)


def test_restarted_by_torchrun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1, options=("--max-restarts", "1", "--monitor-interval", "0.1"))
    out, err = kill_rank_1(folder, process)
    assert process.returncode == 0, err[-3000:]
    assert "resuming" in out
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_a_run_in_which_a_rank_dies_is_resumed_to_the_same_bits(
    uninterrupted: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1, more=COUNTING)
    _, err = kill_rank_1(folder, process)
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL)" in err  # torchrun's summary names the rank
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["error"].partition(":")[0]) in {("failed", "RankError"), ("interrupted", "Interrupted")}
    assert "resuming" in finish(folder, 2, more=COUNTING)
    assert final(folder) == final(uninterrupted[0])


def test_an_error_in_one_rank_ends_the_others(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 2, raises="1")
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] in ("failed", "interrupted")
    assert "[rank1]: ValueError: the user's own" in err  # with its traceback


AND_AFTERWARDS = """
from endoscope.runners import SupervisedEvaluator, SupervisedTrainer

trainer = SupervisedTrainer(config)
trainer.run()
print(type(trainer.model).__name__, flush=True)
scores = SupervisedEvaluator(evaluation(Path({work_dir!r} + "_eval"), checkpoint={work_dir!r}, overwrite=True)).run()
if scores is not None:
    print("evaluated", len(scores.per_datapoint), flush=True)
"""


def test_several_runners_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    work_dir = str(tmp_path / "run")
    text = CONFIG.format(root=str(ROOT), work_dir=work_dir, pause=0, epochs=1, raises="no rank")
    script.write_text(text + AND_AFTERWARDS.format(work_dir=work_dir))
    for what in ("epoch 0   training loss", "is finished"):  # the second time there is nothing left to do
        command = [sys.executable, *TORCHRUN, "2", str(script)]
        ran = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=100)
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert ran.stdout.count(what) == 1
        assert ran.stdout.count("Slow") == 2, ran.stdout
        assert ran.stdout.count(f"evaluated {VAL}") == 1


def test_torchrun_interrupted_and_resumed_by_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1)
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    process.terminate()
    _, err = process.communicate(timeout=100)
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["error"]) == ("interrupted", "Interrupted: interrupted by SIGTERM")
    assert err.count("interrupted by SIGTERM; the same command resumes it") == 1
    finish(folder, 1)
    for capture in (folder / "epoch_2", folder / "datapoints", folder / "epoch_2" / "outputs"):
        captures = load_debug_outputs(capture)
        assert sorted(captures) == list(range(VAL))
        assert not captures.damage
    assert json.loads((folder / "run.json").read_text())["world_size"] == 1


def test_evaluation_by_two_ranks(tmp_path: Path) -> None:
    out = finish(tmp_path / "two", 2, job="eval")
    assert out.count(f"{VAL} datapoints") == 1
    finish(tmp_path / "one", 1, job="eval")
    two, one = (read_scores(tmp_path / name / "evaluation_scores.json") for name in ("two", "one"))
    assert list(two.per_datapoint) == list(range(VAL))
    assert two.aggregated == pytest.approx(one.aggregated)
    assert sorted(load_debug_outputs(tmp_path / "two")) == list(range(VAL))


def test_which_errors_mean_a_lost_connection() -> None:
    for text in (
        "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1",
        "NCCL error",
        "Broken pipe",
        "failed to recv on TCPStore",
    ):
        assert lost_connection(RuntimeError(text))
    assert lost_connection(torch.distributed.DistStoreError("wait timeout after 300ms"))
    for error in (
        ValueError("Connection closed by peer"),
        RuntimeError("shapes (2, 3) and (4,)"),
        RuntimeError("could not restore the index"),
        RuntimeError("nothing left to store"),
        KeyboardInterrupt(),
    ):
        assert not lost_connection(error)
