"""Ranks: the processes of one run under torchrun, and how they communicate."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from endoscope import ranks as process
from endoscope.errors import ConfigError, EndoscopeError

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others, which may be reading data or writing a checkpoint."""


class RankError(EndoscopeError, RuntimeError):
    """Another process of the run ended."""


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of the run; without torchrun it is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    group: Any = None
    """The group for plain objects; gradients use the default group."""

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the other processes that torchrun started, if any. The group lasts until the process ends."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized() and process.world_size() > 1:
            # Imported after the group exists, its default arguments would keep the group beyond the interpreter's end.
            importlib.import_module("torch.distributed.nn.functional")
            store, rank, world_size = next(dist.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
            # After a restart by torchrun the store still has the earlier processes' addresses. Each machine counts its
            # own restarts, so the count is a common name on one machine only.
            alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
            restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
            store = dist.PrefixStore(f"endoscope_{restart}", store)  # type: ignore[attr-defined]
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
            atexit.register(_end_group)
        if not dist.is_initialized() or process.world_size() == 1:
            return cls()
        group = dist.new_group(backend="gloo", timeout=TIMEOUT) if dist.get_backend() != "gloo" else None
        return cls(process.rank(), process.world_size(), group)

    @property
    def several(self) -> bool:
        return self.world_size > 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes what the run has once."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on rank 0; an empty list elsewhere."""
        if not self.several:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.first else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values or []

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if not self.several:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def all(self, flag: bool) -> bool:
        """Whether the flag is true on every rank."""
        if not self.several:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags, op=dist.ReduceOp.MIN, group=self.group)
        return bool(flags.item())

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.several:
            dist.barrier(group=self.group)

    def share_buffers(self, *modules: torch.nn.Module) -> None:
        """Copy rank 0's buffers to all ranks. In training each rank has its own running statistics."""
        if self.several:
            for module in modules:
                for buffer in module.buffers():
                    dist.broadcast(buffer, 0)

    def wrap(self, network: torch.nn.Module, device: torch.device, *, unused_parameters: bool) -> torch.nn.Module:
        """The model to train: with several ranks, wrapped in `DistributedDataParallel`."""
        if not self.several:
            return network
        ids = [device.index] if device.type == "cuda" else None
        try:
            return DistributedDataParallel(network, device_ids=ids, find_unused_parameters=unused_parameters)
        except (RuntimeError, ValueError) as e:
            if lost_connection(e):
                raise
            raise ConfigError(f"model: torch cannot share it among ranks: {e}") from e


def _end_group() -> None:
    """Before the interpreter ends: a thread of the group that frees a tensor later aborts the process."""
    gc.collect()  # a model's wrapper waits for the group's threads when it is freed
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_broken_group() -> None:
    """After the death of another rank: ending the group could block."""
    atexit.unregister(_end_group)


def check_gradients(network: torch.nn.Module, ranks: Ranks, trainer: str) -> bool:
    """Raise if the ranks have different gradients. Returns whether that is certain: not if some are not finite."""
    difference = differing_gradients(network, ranks)
    if difference:
        raise ConfigError(
            f"runner: after {trainer}._train_step the ranks have different gradients ({difference}): each would train "
            "its own model\n"
            "compute the loss from self._forward(datapoint) or self.model(...), not from self.network or its parts"
        )
    return difference is not None


def differing_gradients(network: torch.nn.Module, ranks: Ranks) -> str | None:
    """Which gradient differs among the ranks, as text; empty if all agree except for the last digits; None if some are
    not finite, so that nothing can be said."""
    sums = {}
    for name, p in network.named_parameters():
        if type(p.grad) is torch.Tensor and p.grad.layout is torch.strided:  # others may be spread over the ranks
            grad = p.grad.detach().abs() if p.grad.is_complex() else p.grad.detach()
            # Both, because the gradients of a last layer under cross-entropy add up to 0 on every rank.
            sums[name] = float(grad.sum(dtype=torch.float64)), float(grad.abs().sum(dtype=torch.float64))
    gathered = ranks.gather(sums)
    return ranks.agreed(_difference(gathered) if ranks.first else None)  # type: ignore[no-any-return]


def _difference(gathered: list[dict[str, tuple[float, float]]]) -> str | None:
    names = list(dict.fromkeys(name for sums in gathered for name in sums))
    table = np.array([[sums.get(name, (0.0, 0.0)) for name in names] for sums in gathered]).reshape(-1, len(names), 2)
    if not np.isfinite(table).all():
        return None
    magnitudes = np.maximum(table[:, :, 1], table[0, :, 1])
    different = (np.abs(table - table[0]) > 1e-4 * magnitudes[:, :, None]).any(2)
    if not different.any():
        return ""
    rank, k = np.argwhere(different)[0]
    return f"of {names[k]!r}, on ranks 0 and {rank}"


_LOST = re.compile(
    r"gloo\b|\bnccl|connection (was )?(closed|reset|refused)|broken pipe|\bsocket|\b(TCP|File|Hash|Prefix)Store\b",
    re.IGNORECASE,
)


def lost_connection(error: BaseException | None) -> bool:
    """Whether an error means that another rank does not answer."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    return isinstance(error, RuntimeError) and bool(_LOST.search(str(error)))
