"""Ranks: the processes of one run under torchrun, and what they tell each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from endoscope.errors import EndoscopeError

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others; one of them may be reading data or writing a checkpoint meanwhile."""


class RankError(EndoscopeError, RuntimeError):
    """Another process of the run died."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run; alone it is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    peers: tuple[tuple[str, int], ...] = ()
    """Host and process id of every rank."""
    group: Any = None
    """For plain objects; gradients go through the default group."""
    began: bool = False
    """Whether we began the process group, and so end it."""

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the other processes that torchrun started, if it did."""
        if not dist.is_available():
            return cls()
        began = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if began:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls(began=began)
        group = dist.new_group(backend="gloo", timeout=TIMEOUT) if dist.get_backend() != "gloo" else None
        peers: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(peers, (socket.gethostname(), os.getpid()), group=group)
        return cls(dist.get_rank(), dist.get_world_size(), tuple(peers), group, began)

    @property
    def several(self) -> bool:
        return self.world_size > 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes what the run has once."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, on rank 0; nothing elsewhere."""
        if not self.several:
            return [value]
        found: list[Any] | None = [None] * self.world_size if self.first else None
        dist.gather_object(value, found, dst=0, group=self.group)
        return found or []

    def agreed(self, value: Any) -> Any:
        """What rank 0 gave, on every rank."""
        if not self.several:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.several:
            dist.barrier(group=self.group)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """Rank 0's buffers everywhere: after a training step each rank has its own running statistics."""
        if self.several:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def leave(self, *, broken: bool) -> None:
        """End what `join` began; a broken group is left to the end of the process, because it may never answer."""
        if self.began and not broken and dist.is_initialized():
            dist.destroy_process_group()

    def died(self, *, within_s: float) -> str:
        """Which of the other ranks on this machine are gone, as a sentence; empty when none is."""
        here = socket.gethostname()
        until = time.monotonic() + within_s
        while self.several:
            gone = [
                f"rank {rank} (process {pid})"
                for rank, (host, pid) in enumerate(self.peers)
                if rank != self.rank and host == here and not _alive(pid)
            ]
            if gone:
                return f"{' and '.join(gone)} died"
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return ""


def _alive(pid: int) -> bool:
    """A process that has ended and was not yet waited for counts as gone."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return True


class Share(Sampler[int]):
    """One rank's datapoints: every datapoint belongs to exactly one rank, none is repeated to make the shares equal."""

    def __init__(self, count: int, rank: int, world_size: int) -> None:
        self._indices = range(rank, count, world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
