"""Iterable datasets on several ranks: an epoch ends for all when it ends for one, and what was left out is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_ranks import ONE_THREAD, TORCHRUN
from .test_resume import ROOT

CONFIG = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
import torch
from torch.utils.data import DataLoader, IterableDataset
from endoscope.runners.loops import distributed, steps
from tests.runners.training import config as make, node

steps.COUNT_MOST = {count_most}

class Stream(IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank()
        for k in range({batches}[rank] * 4):
            yield {{"inputs": torch.full((6,), k / 10), "labels": k % 3, "meta_info": {{"idx": 2 * k + rank}}}}

    {more}

loader = node(DataLoader, batch_size=4, num_workers={workers})
config = make(Path({work_dir!r}), epochs=2, train_dataset=node(Stream), train_dataloader=loader, debugger=None)
config.update({changed})
{last}
"""


def train(folder: Path, batches: tuple[int, int], **options: Any) -> tuple[subprocess.CompletedProcess[str], Path]:
    settings = {"count_most": 1000, "workers": 0, "changed": "{}", "more": "", "last": "", **options}
    script = folder / "trial.py"
    script.write_text(CONFIG.format(root=str(ROOT), work_dir=str(folder / "run"), batches=batches, **settings))
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "2", str(ROOT / "main.py"), "--config-filepath", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=ONE_THREAD,
    )
    return done, folder / "run"


def steps(work_dir: Path) -> list[int]:
    return [epoch["step"] for epoch in json.loads((work_dir / "progress.json").read_text())["epochs"]]


def warned(done: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall(r"train_dataset: it gave fewer batches to rank .*", done.stderr)


@pytest.mark.parametrize(
    ("batches", "options", "expected", "left"),
    [
        ((3, 5), {}, [3, 6], "0: 2 batches"),
        ((5, 3), {"workers": 1}, [3, 6], "1: 2 batches"),
        (
            (5, 2),
            {"changed": "accumulate=2"},
            [1, 2],
            "1: 3 batches",
        ),
        ((4, 3), {"changed": "accumulate=2"}, [2, 4], None),
        ((3, 3), {}, [3, 6], None),
        ((2, 900), {"count_most": 50}, [2, 4], "0: more than 50"),
    ],
)
def test_an_epoch_ends_for_all(
    batches: tuple[int, int], options: dict[str, Any], expected: list[int], left: str | None, tmp_path: Path
) -> None:
    done, work_dir = train(tmp_path, batches, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(work_dir) == expected
    assert len(warned(done)) == (left is not None)  # once, by one rank, and not in every epoch
    if left is not None:
        rank, _, count = left.partition(": ")
        assert f"rank {rank} than to others; epoch 0 ended there for all, and {count}" in warned(done)[0]
    assert json.loads((work_dir / "run.json").read_text())["status"] == "finished"


def test_a_rank_without_any_batch(tmp_path: Path) -> None:
    done, work_dir = train(tmp_path, (2, 0))
    assert done.returncode != 0
    run = json.loads((work_dir / "run.json").read_text())
    assert run["status"] == "failed"
    assert "train_dataset: it gave no batch on one rank or more" in run["error"]


def test_a_stream_that_knows_its_length_is_one_all_the_same(tmp_path: Path) -> None:
    done, work_dir = train(tmp_path, (3, 2), more="def __len__(self): return 12")
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(work_dir) == [2, 4]


NEVER = """
def never(self, flag):
    raise AssertionError("asked")

distributed.Ranks.all = never
"""
BLOBS = """
from tests.runners.training import Blobs
config["train_dataset"] = node(Blobs, count=16)
"""


def test_datasets_with_positions_do_not_pay_for_it(tmp_path: Path) -> None:
    done, _ = train(tmp_path, (2, 2), last=NEVER + BLOBS)
    assert done.returncode == 0, done.stderr[-3000:]


def test_twin_a_stream_does(tmp_path: Path) -> None:
    done, _ = train(tmp_path, (2, 2), last=NEVER)
    assert done.returncode != 0
    assert "AssertionError: asked" in done.stderr
