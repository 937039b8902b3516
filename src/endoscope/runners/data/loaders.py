"""Loaders: from a dataloader node and a dataset to a DataLoader whose order and augmentation repeat bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from endoscope.config import build_from_config
from endoscope.errors import ConfigError
from endoscope.runners.config.kinds import type_name
from endoscope.runners.data.batches import UserCollate, collate
from endoscope.runners.data.datapoints import Datapoints, NumberedItem, adapt, datapoint

DEFAULT_BATCH_SIZE = 32


def make_loader(
    node: dict[str, Any] | None,
    dataset: Any,
    *,
    shuffle_default: bool,
    seed: int,
    sampler: Iterable[int] | None = None,
    key_path: str = "",
) -> DataLoader[Any]:
    """A DataLoader of batches in the shape of datapoints.

    >>> loader = make_loader(None, [(torch.zeros(3), 1)] * 100, shuffle_default=True, seed=0)
    >>> next(iter(loader))["inputs"].shape
    torch.Size([32, 3])

    The node's arguments override the defaults: ``batch_size=32``, ``shuffle=shuffle_default``, and two generators
    seeded with ``seed``. The loader's generator seeds the workers, the sampler's makes the order; `seed_loader` before
    an epoch repeats that epoch. A ``collate_fn`` gets the dataset's own items.

    sampler: replaces ``shuffle``; the runner shares the data among ranks with it.
    """
    node = node or {"class": DataLoader}
    where = f"{key_path}.args".lstrip(".")
    args = dict(node.get("args", {}))
    collate_fn, make = _collate_fn(args, where)
    data = adapt(dataset, make=make)
    _set_order(args, sampler, where, shuffle=shuffle_default and isinstance(data, Datapoints))
    generator = build_from_config(args.pop("generator", None), key_path=f"{where}.generator")
    loader: DataLoader[Any] = build_from_config(
        {**node, "args": args},
        key_path=key_path,
        dataset=data,
        collate_fn=collate_fn,
        generator=generator or torch.Generator().manual_seed(seed),
    )
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{key_path or 'the dataloader'}: found {type_name(loader)}; expected a DataLoader")
    _separate_generators(loader)
    if sampler is None and isinstance(data, Datapoints) and length(loader) == 0:
        raise ConfigError(f"{where}.drop_last: {len(data)} items make no batch; lower batch_size, or set it to False")
    return loader


def _collate_fn(args: dict[str, Any], where: str) -> tuple[Callable[[Any], Any], Callable[[Any, int | None], Any]]:
    """The function that makes batches, and the one that makes the items for it."""
    function = build_from_config(args.pop("collate_fn", None), key_path=f"{where}.collate_fn")
    if function is None:
        return collate, datapoint
    if not callable(function):
        raise ConfigError(f"{where}.collate_fn: found {function!r}; expected a function")
    return UserCollate(function), NumberedItem


def _set_order(args: dict[str, Any], sampler: Iterable[int] | None, where: str, *, shuffle: bool) -> None:
    """Check and fill in the arguments that decide the order and the size of the batches."""
    for name in ("shuffle", "drop_last"):
        if not (args.get(name) is None or isinstance(args[name], bool)):  # to torch, the string 'no' is true
            raise ConfigError(f"{where}.{name}: found {args[name]!r}; expected True or False")
    if sampler is not None:
        for name in ("sampler", "batch_sampler"):
            if args.get(name) is not None:
                raise ConfigError(f"{where}.{name}: the runner shares the data among the ranks itself; remove it")
        args.pop("shuffle", None)
        args["sampler"] = sampler
    if args.get("batch_sampler") is None:
        args.setdefault("batch_size", DEFAULT_BATCH_SIZE)
        if args.get("sampler") is None:
            args.setdefault("shuffle", shuffle)
        if args["batch_size"] is None:
            raise ConfigError(f"{where}.batch_size: found None; expected the number of datapoints in a batch")


def _separate_generators(loader: DataLoader[Any]) -> None:
    """Give the samplers another generator than the loader's.

    Persistent workers draw their seeds from the loader's in the first epoch only, which would change the order in a
    resumed run.
    """
    for sampler in _samplers(loader):
        shared = getattr(sampler, "generator", None)
        if shared is not None and shared is loader.generator:
            with contextlib.suppress(AttributeError):  # a property
                sampler.generator = torch.Generator().manual_seed(shared.initial_seed())


def length(loader: DataLoader[Any]) -> int | None:
    """The number of batches; None if an iterable dataset or a sampler has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def seed_loader(loader: DataLoader[Any], *, order: int, draws: int, epoch: int) -> None:
    """Seed the next epoch's order, and what its workers draw.

    A user's sampler is seeded through its attribute ``generator`` or its method ``set_epoch``, if it has them.
    """
    if loader.generator is not None:
        loader.generator.manual_seed(draws)
    for sampler in _samplers(loader):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(order)
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    """The loader's samplers, each once."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return list({id(one): one for one in samplers if one is not None}.values())


def shuffles(node: dict[str, Any] | None, *, default: bool) -> bool:
    """Whether a dataloader node sets a new order in every epoch."""
    value = (node or {}).get("args", {}).get("shuffle")
    return default if value is None else bool(value)
