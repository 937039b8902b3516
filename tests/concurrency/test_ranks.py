"""Several ranks write into one folder, each its own pages; one reader merges them."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened
from tests.sameness import canonical
from tests.warm import Say, WarmProcess
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from endoscope import SequentialDebugger
from endoscope.errors import FolderInUseError

from .conftest import Gradient, Output, inputs, net, node

EACH = 4
NODES = [node("output", Output, layer_name="2"), node("gradient", Gradient, layer_name="2")]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def plain_net() -> nn.Module:
    """Without a layer that runs twice, which DDP would not mind but the expectation would."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model: nn.Module, debugger: SequentialDebugger | None, rank: int, world: int) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(EACH):
        idx = k * world + rank
        optimizer.zero_grad()
        model(inputs(idx)).square().sum().backward()
        if debugger is not None:
            debugger({"meta_info": {"idx": idx}}, model)
        optimizer.step()
    return [p.detach().tolist() for p in model.parameters()]


def rank_main(environment: dict[str, str], folder: str, send: Any) -> None:
    """Train without a debugger, then with one; sends the weights of both."""
    os.environ.update(environment)
    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    grouped = "MASTER_ADDR" in environment
    if grouped:
        distributed.init_process_group("gloo")

    def net() -> nn.Module:
        return DistributedDataParallel(plain_net()) if grouped else plain_net()

    alone = train(net(), None, rank, world)
    model = net()
    with SequentialDebugger(NODES, model, output_dir=folder, page_size_mb=1e-3) as debugger:
        debugger.enabled = True
        send.send([alone, train(model, debugger, rank, world)])
    if grouped:
        distributed.destroy_process_group()


def launch(say: Say, folder: str, world: int, grouped: bool) -> None:
    """Start every rank as a launcher does, at once; says the weights that each ended with, without us and with."""
    fork = multiprocessing.get_context("fork")
    shared = {"WORLD_SIZE": str(world)}
    if grouped:
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = []
    for rank in range(world):
        receive, send = fork.Pipe(duplex=False)
        process = fork.Process(target=rank_main, args=({**shared, "RANK": str(rank)}, folder, send))
        process.start()
        started.append((process, receive))
    for process, receive in started:
        assert receive.poll(50), "a rank hangs"
        say(receive.recv())
        process.join(20)
        assert process.exitcode == 0


Runs = dict[str, tuple[Path, list[Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess) -> Runs:
    """Each launch once: the folder with its pages, and what its ranks sent."""
    found: Runs = {}
    for name, world in (("group", 2), ("environment", 3)):
        folder = tmp_path_factory.mktemp(name) / "debugger"
        arguments = {"folder": str(folder), "world": world, "grouped": name == "group"}
        done = warm.run("tests.concurrency.test_ranks:launch", **arguments)
        assert done.status == 0, done.stderr
        found[name] = folder, done.said
    return found


@pytest.mark.parametrize(("name", "world"), [("group", 2), ("environment", 3)])
def test_each_rank_writes_and_one_reader_merges(name: str, world: int, runs: Runs) -> None:
    folder = runs[name][0]
    found = opened(folder)
    assert list(found) == list(range(EACH * world))
    assert not found.verify()
    assert not found.damage
    ranks = {p.stem.partition("_rank_")[2] for p in folder.glob("page_*.jsonl")}
    assert ranks == {str(r) for r in range(world)}
    assert all(found.list(idx) == ["output", "gradient"] for idx in found)
    model = plain_net()
    for rank in range(world):  # before the first step all ranks have the same weights
        assert canonical(found.read(rank, "output")["output"]) == canonical(model(inputs(rank)))


def test_ranks_compute_the_same_without_us(runs: Runs) -> None:
    """DDP averages the gradients over the ranks: both end with the same weights, with and without debuggers."""
    (alone_0, watched_0), (alone_1, watched_1) = runs["group"][1]
    assert alone_0 == watched_0 == alone_1 == watched_1


def test_ranks_without_a_group_differ(runs: Runs) -> None:
    (_, one), (_, two), (_, three) = runs["environment"][1]
    assert one != two
    assert two != three


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


def capture(folder: Path, idx: int, **options: Any) -> None:
    debugger = SequentialDebugger([], net(), output_dir=folder, **options)
    debugger.add_to_buffer({"a": torch.full((3,), idx)}, {"meta_info": {"idx": idx}})
    debugger.close()


def test_a_smaller_world_replaces_a_larger_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        as_rank(monkeypatch, rank, 3)
        capture(folder, rank)
    with pytest.raises(FolderInUseError):
        capture(folder, 9)
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        capture(folder, 10 + rank, overwrite=True)
    assert list(opened(folder)) == [10, 11]
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    capture(folder, 20, overwrite=True)
    assert list(opened(folder)) == [20]


def test_ranks_save_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spooled by each, moved to the same place by each."""
    debuggers = []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        debuggers.append(SequentialDebugger([], net(), spool_dir=tmp_path))
    for rank, debugger in enumerate(debuggers):
        debugger.add_to_buffer({"a": torch.full((3,), rank)}, {"meta_info": {"idx": rank}})
        debugger.save_all(tmp_path / "epoch_0")
        debugger.close()
    found = opened(tmp_path / "epoch_0")
    assert [int(found[k]["a"][0]) for k in found] == [0, 1]
