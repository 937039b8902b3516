"""Which process of a distributed run this is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from endoscope import ranks

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def facts() -> tuple[int, int, int, bool]:
    return ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.is_distributed()


def test_a_process_alone() -> None:
    assert facts() == (0, 1, 0, False)


def test_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES, ("5", "8", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert facts() == (5, 8, 1, True)


def test_an_environment_that_is_not_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")
    assert facts() == (0, 1, 0, False)


@pytest.mark.usefixtures("group")
def test_an_initialised_group_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES, ("5", "8", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert facts() == (0, 1, 1, False)  # a group does not know the local rank


@pytest.mark.parametrize(("before", "imported"), [("", False), ("import torch; ", True)])
def test_importing_it_does_not_import_torch(before: str, imported: bool) -> None:
    code = f"{before}import sys; from endoscope import ranks; ranks.rank(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(imported)
