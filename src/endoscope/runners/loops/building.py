"""Building the parts of a run from its settings, with errors that name the key."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, DistributedSampler

from endoscope.config import build_from_config, is_node
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.ranks import local_rank
from endoscope.runners.config.kinds import type_name
from endoscope.runners.config.settings import Settings
from endoscope.runners.data.datapoints import Datapoints, adapt
from endoscope.runners.data.loaders import make_loader, shuffles
from endoscope.runners.loops.distributed import Ranks


def build(settings: Settings, key: str, **given: Any) -> Any:
    """Build the node of a key; ``given`` are the arguments that the runner adds."""
    node = getattr(settings, key)
    with naming(key, node.get("args", ()) if is_node(node) else ()):
        return build_from_config(node, key_path=key, **given)


def expect(value: Any, cls: type, key: str) -> Any:
    """``value`` if it has the class that a key needs."""
    if not isinstance(value, cls):
        raise ConfigError(f"{key}: found {type_name(value)}; expected a {cls.__name__}")
    return value


def build_loader(
    settings: Settings, split: Literal["train", "val", "eval"], *, shuffle: bool, ranks: Ranks
) -> DataLoader[Any]:
    """The loader of a split's dataset; with several ranks, of this rank's share of it."""
    key = f"{split}_dataset"
    with naming(key):
        dataset = adapt(build(settings, key), name=key)
        if isinstance(dataset, Datapoints) and len(dataset) == 0:
            raise ConfigError("it has no items")
    sampler: Iterable[int] | None = None
    if ranks.several and isinstance(dataset, Datapoints):
        if split == "train":
            shuffle = shuffles(settings.train_dataloader, default=shuffle)
            sampler = DistributedSampler(dataset, ranks.world_size, ranks.rank, shuffle=shuffle, seed=settings.seed)
        else:
            sampler = range(ranks.rank, len(dataset), ranks.world_size)  # each datapoint on exactly one rank
    key = f"{split}_dataloader"
    with naming(key):
        return make_loader(
            getattr(settings, key), dataset, shuffle_default=shuffle, seed=settings.seed, sampler=sampler, key_path=key
        )


def compile_model(network: torch.nn.Module, *, warn: bool) -> None:
    """Compile in place, which keeps the names in the state dict. warn: whether this rank may warn."""
    network.compile()
    forward = getattr(type(network), "forward", None)
    if warn and str(getattr(forward, "__module__", "")).startswith("torch.nn."):
        warnings.warn(
            f"compile: the model is a plain {type(network).__name__}, in which torch compiles only layers with a "
            "forward of your own; wrap it in a Module with a forward",
            stacklevel=3,
        )


@contextlib.contextmanager
def naming(key: str, arguments: Iterable[str] = ()) -> Iterator[None]:
    """Turn an exception within this block into an error that names the key.

    arguments: names of the node's arguments, with which our own errors may begin: ``debuggers_config[0]: ...``.
    """
    try:
        yield
    except EndoscopeError as e:
        message = str(e)
        if not message.startswith((f"{key}:", f"{key}.", f"{key}[")):
            in_args = message.partition("[")[0] in arguments
            e.args = (f"{key}.args.{message}" if in_args else f"{key}: {message}",)
        raise
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        where = f" ({Path(frame.filename).name}, line {frame.lineno})"
        raise ConfigError(f"{key}: it could not be built: {type(e).__name__}: {e}{where}") from e


def usable_device(name: torch.device | str) -> torch.device:
    """The device of that name, checked; 'auto' is CUDA if available. Under torchrun 'cuda' is the rank's own device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is not a device; try 'cpu', 'cuda' or 'auto'") from None
    if device.type == "cuda":
        device = device if device.index is not None else torch.device("cuda", local_rank())
    try:
        torch.zeros(1, device=device).item()  # fails on 'meta', too
    except (RuntimeError, AssertionError, ImportError) as e:
        reason = str(e).partition("\n")[0]
        raise ConfigError(f"device: torch cannot use {str(device)!r} here: {reason}; try 'cpu' or 'auto'") from e
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
