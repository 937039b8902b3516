"""Which process of a distributed run this is. The only place that asks torch.distributed or torchrun's environment.

Importing it does not import torch.
"""

from __future__ import annotations

import os
import sys


def rank() -> int:
    """This process's rank; 0 when it runs alone."""
    in_group = _from_group("get_rank")
    return _from_environment("RANK", 0) if in_group is None else in_group


def world_size() -> int:
    """How many processes take part; 1 when this one runs alone."""
    in_group = _from_group("get_world_size")
    return _from_environment("WORLD_SIZE", 1) if in_group is None else in_group


def local_rank() -> int:
    """This process's rank among those on the same machine, which is also the index of its device."""
    return _from_environment("LOCAL_RANK", 0)


def is_distributed() -> bool:
    return world_size() > 1


def _from_group(question: str) -> int | None:
    """What the default process group answers; None before there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(getattr(distributed, question)())


def _from_environment(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default
