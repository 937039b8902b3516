"""What a process holds, counted before and after."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.probes import Gradient, Output, node
from torch import nn

from endoscope import SequentialDebugger

NODES = [node("output", Output, layer_name="*", calls="all"), node("gradient", Gradient, layer_name="*")]
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """One layer that gives a tensor, one that gives a tuple, one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.act(self.fc(x)))[0]


def hooks_on(model: nn.Module) -> int:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, name)) for m in model.modules() for name in names)


@dataclass(frozen=True)
class Census:
    """What the process holds of the things that a debugger takes."""

    hooks: int
    threads: int
    descriptors: int
    folders: int
    tensors: int
    debuggers: int

    def beyond(self, before: Census) -> dict[str, int]:
        """What there is more of than before."""
        grown = {name: count - getattr(before, name) for name, count in dataclasses.asdict(self).items()}
        return {name: more for name, more in grown.items() if more > 0}

    @staticmethod
    def of(model: nn.Module) -> Census:
        gc.collect()
        objects = [type(o) for o in gc.get_objects()]
        return Census(
            hooks=hooks_on(model),
            threads=threading.active_count(),
            descriptors=len(os.listdir("/proc/self/fd")),
            folders=len(os.listdir(tempfile.gettempdir())),
            tensors=sum(issubclass(t, torch.Tensor) for t in objects),
            debuggers=sum(issubclass(t, (SequentialDebugger, Output, Gradient)) for t in objects),
        )


def step(model: nn.Module, debugger: SequentialDebugger, idx: int) -> None:
    """One training step that leaves no gradient behind."""
    model(X).sum().backward()
    debugger({"inputs": X, "meta_info": {"idx": [2 * idx, 2 * idx + 1]}}, model)
    model.zero_grad(set_to_none=True)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def ram(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of pages are synced here, and no disk is the subject."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="endoscope_tests_", dir=shm if os.access(shm, os.W_OK) else tmp_path))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def spools(ram: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Python's temporary folder, of which nobody else has anything."""
    (folder := ram / "spools").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="package")
def only_ours() -> Iterator[None]:
    """What was there before is not counted, nor looked at by the collector: a census takes milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
