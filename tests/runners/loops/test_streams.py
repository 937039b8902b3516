"""Iterable datasets on two ranks; test_steps.py has the rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.runners.processes import ONE_THREAD, ROOT, TORCHRUN

CONFIG = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
import torch
from torch.utils.data import DataLoader, IterableDataset
from tests.runners.training import config as make, node

class Stream(IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank()
        for k in range({batches}[rank] * 4):
            yield {{"inputs": torch.full((6,), k / 10), "labels": k % 3, "meta_info": {{"idx": 2 * k + rank}}}}

loader = node(DataLoader, batch_size=4, num_workers={workers})
config = make(Path({work_dir!r}), epochs=2, train_dataset=node(Stream), train_dataloader=loader, debugger=None)
config["accumulate"] = 2
"""


def train(folder: Path, batches: tuple[int, int], workers: int = 0) -> tuple[subprocess.CompletedProcess[str], Path]:
    script = folder / "trial.py"
    text = CONFIG.format(root=str(ROOT), work_dir=str(folder / "run"), batches=batches, workers=workers)
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "2", str(ROOT / "main.py"), "--config-filepath", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=ONE_THREAD,
    )
    return done, folder / "run"


def test_an_epoch_ends_for_all_ranks(tmp_path: Path) -> None:
    done, work_dir = train(tmp_path, (5, 2), workers=1)
    assert done.returncode == 0, done.stderr[-3000:]
    epochs = json.loads((work_dir / "progress.json").read_text())["epochs"]
    assert [epoch["step"] for epoch in epochs] == [1, 2]
    assert done.stderr.count("train_dataset: it gives fewer batches to rank 1 than to others") == 1
    assert json.loads((work_dir / "run.json").read_text())["status"] == "finished"


def test_a_rank_without_any_batch(tmp_path: Path) -> None:
    done, work_dir = train(tmp_path, (2, 0))
    assert done.returncode != 0
    run = json.loads((work_dir / "run.json").read_text())
    assert run["status"] == "failed"
    assert "train_dataset: it gave no batch on one rank or more" in run["error"]
