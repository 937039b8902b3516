"""Several processes under torchrun: every datapoint once, one score file, one merged capture, an end that is told."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from endoscope import load_debug_outputs
from endoscope.runners.loops.distributed import Ranks, Share, differing_gradients, lost_connection
from endoscope.runs.scores import read_scores

from .test_resume import ROOT
from .training import TRAIN, VAL, final

CONFIG = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.runners.training import Net, config as make, evaluation, node

class Slow(Net):
    def forward(self, x):
        if os.environ.get("RANK") == {raises!r}:
            raise ValueError("the user's own")
        (Path({work_dir!r}).parent / f"pid_{{os.environ.get('RANK')}}").write_text(str(os.getpid()))
        time.sleep({pause})
        return super().forward(x)

config = make(Path({work_dir!r}), model=node(Slow), epochs={epochs})
"""


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(
    folder: Path,
    ranks: int,
    *,
    pause: float = 0.0,
    epochs: int = 3,
    raises: str = "no rank",
    job: str = "main",
    more: str = "",
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    script = folder.parent / f"{folder.name}.py"
    text = CONFIG.format(root=str(ROOT), work_dir=str(folder), pause=pause, epochs=epochs, raises=raises)
    script.write_text(text + more + (f"config = evaluation(Path({str(folder)!r}))" if job == "eval" else ""))
    command = [*TORCHRUN, str(ranks), *options] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, *command, str(ROOT / f"{job}.py"), "--config-filepath", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
    )


def finish(folder: Path, ranks: int, **options: Any) -> str:
    process = start(folder, ranks, **options)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_datapoint_once(ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    out = finish(folder, ranks)
    assert out.count("epoch 2   training loss") == 1  # one rank speaks
    for epoch in range(3):
        scores = read_scores(folder / f"epoch_{epoch}" / "validation_scores.json")
        assert list(scores.per_datapoint) == list(range(VAL))
    for capture in (folder / "epoch_1", folder / "epoch_2", folder / "datapoints", folder / "epoch_2" / "outputs"):
        seen = load_debug_outputs(capture)
        assert sorted(seen) == list(range(VAL))
        assert not seen.damage
    pages = {p.name for p in (folder / "epoch_2" / "debugger").glob("*.jsonl")}
    assert {f"page_0_rank_{r}.jsonl" for r in range(ranks)} <= pages
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["world_size"]) == ("finished", ranks)
    steps = -(-TRAIN // ranks)
    assert json.loads((folder / "progress.json").read_text())["epochs"][-1]["step"] == 3 * -(-steps // 8)
    assert not [p for p in folder.glob("epoch_*/checkpoint.pt") if p.parent.name == "epoch_0"]


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


MORE = """
import torch
from torch import nn
from endoscope.runners import SupervisedTrainer

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(3))

    def forward(self, outputs, labels):
        self.seen += torch.bincount(labels, minlength=3)
        return nn.functional.cross_entropy(outputs, labels, weight=self.seen.sum() / self.seen)

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

class Rewrapped(SupervisedTrainer):
    def _init_state(self):
        super()._init_state()
        self.model = nn.parallel.DistributedDataParallel(self.network, static_graph=True)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)

class Half(Slow):
    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 3)

config.update({changed})
"""


def test_three_ranks_resume_to_the_same_bits(tmp_path: Path) -> None:
    """Also with a criterion whose buffer every rank has its own of, until a validation."""
    more = MORE.format(changed="criterion=node(Counting), debugger=None")
    finish(tmp_path / "whole", 3, more=more)
    finish(tmp_path / "resumed", 3, epochs=2, more=more)
    assert "resuming" in finish(tmp_path / "resumed", 3, more=more)
    assert final(tmp_path / "resumed") == final(tmp_path / "whole")


@pytest.mark.parametrize("runner", ["ByHand", "Rewrapped"])
def test_gradients_may_be_shared_in_another_way(runner: str, tmp_path: Path) -> None:
    finish(tmp_path / "run", 2, more=MORE.format(changed=f"runner={runner}, debugger=None"))
    assert final(tmp_path / "run")["epoch"] == 2


@pytest.mark.parametrize("model", ["Slow", "nn.Linear, in_features=6, out_features=3"])
def test_a_step_that_goes_past_the_wrapper_is_refused(model: str, tmp_path: Path) -> None:
    """Also where the gradients of the classes add up to 0."""
    changed = f"runner=Direct, model=node({model}), debugger=None"
    process = start(tmp_path / "run", 2, more=MORE.format(changed=changed))
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "runner: after Direct._train_step the ranks have different gradients (of '" in err
    assert not (tmp_path / "run" / "epoch_0" / "checkpoint.pt").exists()


def test_parameters_that_get_no_gradient(tmp_path: Path) -> None:
    finish(tmp_path / "run", 2, more=MORE.format(changed="model=node(Half), unused_parameters=True, debugger=None"))
    assert final(tmp_path / "run")["epoch"] == 2


def test_restarted_by_torchrun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1, options=("--max-restarts", "1", "--monitor-interval", "0.1"))
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    os.kill(pid_of(tmp_path / "pid_1"), signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err[-3000:]
    assert "resuming" in out
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def group_threads() -> int:
    """How many threads of process groups this process has."""
    names = (Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task"))
    return sum(name.startswith(("pt_gloo", "gloo")) for name in names)


AND_AFTERWARDS = """
from tests.runners.test_ranks import group_threads
from endoscope.runners import SupervisedEvaluator, SupervisedTrainer

trainer = SupervisedTrainer(config)
before = group_threads()
trainer.run()
print(f"{{before > 0}} then {{group_threads()}}, {{type(trainer.model).__name__}}", flush=True)
for k in range(3):  # another group each time
    config = evaluation(Path({work_dir!r} + f"_{{k}}"), checkpoint={work_dir!r}, overwrite=True)
    scores = SupervisedEvaluator(config).run()
    if scores is not None:
        print("evaluated", len(scores.per_datapoint), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are named in /proc only")
def test_runners_one_after_another_and_no_thread_of_their_groups_is_left(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    work_dir = str(tmp_path / "run")
    text = CONFIG.format(root=str(ROOT), work_dir=work_dir, pause=0, epochs=1, raises="no rank")
    script.write_text(text + AND_AFTERWARDS.format(work_dir=work_dir))
    for what in ("epoch 0   training loss", "is finished"):  # the second time there is nothing left to do
        command = [sys.executable, *TORCHRUN, "2", str(script)]
        ran = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=100)
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert ran.stdout.count(what) == 1
        assert ran.stdout.count("True then 0, Slow") == 2, ran.stdout
        assert ran.stdout.count(f"evaluated {VAL}") == 3


def pid_of(path: Path) -> int:
    """The rank writes it in every forward: it may be empty just now."""
    until = time.monotonic() + 20
    while not (text := path.read_text()):
        assert time.monotonic() < until
    return int(text)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_rank_that_dies_is_named_and_the_run_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1)
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    time.sleep(0.3)
    os.kill(pid_of(tmp_path / "pid_1"), signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "failed"
    assert run["error"].startswith("rank 1 (process ")
    assert "rank 1 (process" in err
    (tmp_path / "pid_1").unlink()
    finish(folder, 2)
    finish(tmp_path / "whole", 2)
    assert final(folder) == final(tmp_path / "whole")


def test_an_error_in_one_rank_is_told_with_the_rank(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 2, raises="1")
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "failed"
    assert re.fullmatch(r"rank 1 \(process \d+\) died: ValueError: the user's own", run["error"])
    assert "[rank1]: ValueError: the user's own" in err  # with its traceback
    assert re.search(r"^Error: rank 0: rank 1 \(process \d+\) died: ValueError", err, re.MULTILINE)


def test_torchrun_interrupted_and_resumed_by_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 2, pause=0.1)
    wait_for(folder / "epoch_0" / "checkpoint.pt", process)
    process.terminate()
    _, err = process.communicate(timeout=100)
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["error"]) == ("interrupted", "Interrupted: interrupted by SIGTERM")
    assert err.count("interrupted by SIGTERM; the same command resumes it") == 1
    assert "died" not in err
    finish(folder, 1)
    for capture in (folder / "epoch_2", folder / "datapoints", folder / "epoch_2" / "outputs"):
        seen = load_debug_outputs(capture)
        assert sorted(seen) == list(range(VAL))
        assert not seen.damage
    assert json.loads((folder / "run.json").read_text())["world_size"] == 1


def test_evaluation_by_two_ranks(tmp_path: Path) -> None:
    out = finish(tmp_path / "two", 2, job="eval")
    assert out.count(f"{VAL} datapoints") == 1
    finish(tmp_path / "one", 1, job="eval")
    two, one = (read_scores(tmp_path / name / "evaluation_scores.json") for name in ("two", "one"))
    assert list(two.per_datapoint) == list(range(VAL))
    assert two.aggregated == pytest.approx(one.aggregated)
    assert sorted(load_debug_outputs(tmp_path / "two")) == list(range(VAL))


def test_which_errors_may_come_from_a_dead_rank() -> None:
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


@pytest.mark.parametrize(("count", "world"), [(0, 2), (1, 3), (7, 1), (7, 2), (7, 3), (9, 3)])
def test_shares_are_disjoint_and_whole(count: int, world: int) -> None:
    shares = [list(Share(count, rank, world)) for rank in range(world)]
    assert sorted(k for share in shares for k in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
