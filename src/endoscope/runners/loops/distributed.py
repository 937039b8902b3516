"""Ranks: the processes of one run under torchrun, and what they tell each other."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from endoscope.errors import EndoscopeError

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others; one of them may be reading data or writing a checkpoint meanwhile."""


_LET_GO_S = 0.05
"""Enough for the threads of a group to free the tensors of calls that are over."""


_groups = itertools.count()
"""Every rank makes the same runners in the same order."""


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
    store: Any = None
    """Where a rank leaves its last words; it outlives the connections between the ranks."""

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the other processes that torchrun started, if it did."""
        if not dist.is_available():
            return cls()
        began = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if began:
            # Imported later it would keep the default group for ever: its functions have it as a default argument.
            importlib.import_module("torch.distributed.nn.functional")
            store, rank, world_size = next(dist.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
            # A second group in this process, or one after a restart by torchrun, must not find the addresses that the
            # first one left in the store. Each machine counts its own restarts: among several they are no common name.
            alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
            restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
            store = dist.PrefixStore(f"endoscope_{restart}_{next(_groups)}", store)  # type: ignore[attr-defined]
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls(began=began)
        group = dist.new_group(backend="gloo", timeout=TIMEOUT) if dist.get_backend() != "gloo" else None
        peers: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(peers, (socket.gethostname(), os.getpid()), group=group)
        store = dist.distributed_c10d._get_default_store()
        return cls(dist.get_rank(), dist.get_world_size(), tuple(peers), group, began, store)

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

    def all(self, flag: bool) -> bool:
        """Whether it is true on every rank; known to all of them."""
        if not self.several:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags, op=dist.ReduceOp.MIN, group=self.group)
        return bool(flags.item())

    def wait(self) -> None:
        """Until every rank is here."""
        if self.several:
            dist.barrier(group=self.group)

    def share_buffers(self, *modules: torch.nn.Module) -> None:
        """Rank 0's buffers everywhere: after a training step each rank has its own running statistics."""
        if self.several:
            for module in modules:
                for buffer in module.buffers():
                    dist.broadcast(buffer, 0)

    def leave(self, *, broken: bool) -> Ranks:
        """End what `join` began, and its threads; a broken group is left alone, because it may never answer.

        A thread of a group that comes back to free a tensor when the interpreter is gone aborts the process. The last
        to hold the group must therefore not be a model's wrapper, which would wait for the thread with the GIL held.
        """
        if not self.began or not dist.is_initialized():
            return self
        if broken:
            time.sleep(_LET_GO_S)
            return self
        gc.collect()
        dist.destroy_process_group()
        return replace(self, group=None, store=None, began=False)

    def leave_word(self, word: str) -> None:
        """Tell the others why this rank ends; nothing, when it is only because another one did."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):  # the process that keeps the store may be the one that died
                self.store.set(_word_key(self.rank), word)

    def died(self, *, within_s: float, interrupted_too: bool) -> str:
        """Which of the other ranks on this machine are gone, and why, as a sentence; empty when none is.

        Those that went because another one did are not named; those that were interrupted only if asked for.
        """
        here = socket.gethostname()
        until = time.monotonic() + within_s
        while self.several:
            gone = []
            for rank, (host, pid) in enumerate(self.peers):
                if rank == self.rank or host != here or _alive(pid):
                    continue
                word = self._last_word(rank)
                if word is None or (word and (interrupted_too or not word.startswith("Interrupted"))):
                    gone.append(f"rank {rank} (process {pid}) died{f': {word}' if word else ''}")
            if gone:
                return " and ".join(gone)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return ""

    def _last_word(self, rank: int) -> str | None:
        """None when it had no time to say any: it was killed."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                if self.store.check([_word_key(rank)]):
                    return bytes(self.store.get(_word_key(rank))).decode()
        return None


def _word_key(rank: int) -> str:
    return f"endoscope_last_word_{rank}"


def settle_buckets(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Have the wrapper lay out its buckets now, in the reverse order of the parameters.

    After its first backward it does so once more, by the order in which the gradients came. From three ranks on, where
    a gradient stands in a bucket decides in which order the ranks' are added, so that the first step of a resumed run
    would differ in its last bits from the same step of one that was not interrupted.
    """
    if any(getattr(module, "sparse", False) for module in model.modules()):  # their gradients cannot be made up
        return
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters()):  # not for gradients of ours
        return
    total = torch.zeros(())
    for parameter in model.parameters():  # the last is the first to have its gradient
        if parameter.requires_grad:
            total = total + 0 * parameter.sum().real
    model.reducer.prepare_for_backward([])
    total.backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)


def differing_gradients(network: torch.nn.Module, ranks: Ranks) -> str | None:
    """Where the ranks have different gradients, as a text; empty where they agree, up to their last digits; None where
    some are not finite, which tells nothing."""
    sums = {}
    for name, p in network.named_parameters():
        if type(p.grad) is torch.Tensor and p.grad.layout is torch.strided:  # others may be spread over the ranks
            grad = p.grad.detach().abs() if p.grad.is_complex() else p.grad.detach()
            # Both: of a last layer under cross-entropy the sum alone is 0 on every rank.
            sums[name] = float(grad.sum(dtype=torch.float64)), float(grad.abs().sum(dtype=torch.float64))
    seen = ranks.gather(sums)
    return ranks.agreed(_compared(seen) if ranks.first else None)  # type: ignore[no-any-return]


def _compared(seen: list[dict[str, tuple[float, float]]]) -> str | None:
    if not all(math.isfinite(number) for sums in seen for pair in sums.values() for number in pair):
        return None
    nothing = (0.0, 0.0)
    for name in dict.fromkeys(name for sums in seen for name in sums):
        first = seen[0].get(name, nothing)
        for rank, sums in enumerate(seen[1:], 1):
            other = sums.get(name, nothing)
            if any(abs(x - y) > 1e-4 * max(first[1], other[1]) for x, y in zip(first, other, strict=True)):
                return f"of {name!r}, on ranks 0 and {rank}"
    return ""


_LOST = re.compile(
    r"gloo\b|\bnccl|connection (was )?(closed|reset|refused)|broken pipe|\bsocket|\b(TCP|File|Hash|Prefix)Store\b",
    re.IGNORECASE,
)


def lost_connection(error: BaseException) -> bool:
    """Whether an error says that another rank does not answer: only then may that one's death be its reason."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    return isinstance(error, RuntimeError) and bool(_LOST.search(str(error)))


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
