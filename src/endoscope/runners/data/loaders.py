"""Loaders: from a dataloader node and a dataset to a DataLoader whose order and augmentation repeat bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from endoscope.config import build_from_config
from endoscope.errors import ConfigError
from endoscope.runners.data.batches import UserCollate, collate
from endoscope.runners.data.datapoints import Datapoints, NumberedItem, adapt

DEFAULT_BATCH_SIZE = 32


def make_loader(
    node: dict[str, Any] | None,
    dataset: Any,
    *,
    shuffle_default: bool,
    seed: int,
    sampler: Sampler[int] | Iterable[int] | None = None,
    key_path: str = "",
) -> DataLoader[Any]:
    """A DataLoader of batches in the shape of datapoints.

    >>> loader = make_loader(None, [(torch.zeros(3), 1)] * 100, shuffle_default=True, seed=0)
    >>> next(iter(loader))["inputs"].shape
    torch.Size([32, 3])

    What the node says goes before the defaults: ``batch_size=32``, ``shuffle=shuffle_default``, and two generators
    seeded with ``seed``. The loader's gives every worker its seeds of torch, numpy and ``random``, the sampler's makes
    the order. `seed_loader` before an epoch repeats that epoch. A ``collate_fn`` is given the dataset's own items.
    sampler: the runner's, where it shares the data among ranks; it takes the place of ``shuffle``.
    """
    node = {"class": DataLoader} if node is None else node
    args = dict(node.get("args", {}))
    where = f"{key_path}.args" if key_path else "args"
    user_collate = build_from_config(args.pop("collate_fn", None), key_path=f"{where}.collate_fn")
    if not (user_collate is None or callable(user_collate)):
        raise ConfigError(f"{where}.collate_fn: found {user_collate!r}; expected a function")
    for name in ("shuffle", "drop_last"):
        if not (args.get(name) is None or isinstance(args[name], bool)):  # torch would take the text 'no' for a yes
            raise ConfigError(f"{where}.{name}: found {args[name]!r}; expected True or False")
    data = adapt(dataset) if user_collate is None else adapt(dataset, make=NumberedItem)
    if sampler is not None:
        for name in ("sampler", "batch_sampler"):
            if args.get(name) is not None:
                raise ConfigError(f"{where}.{name}: the runner shares the data among the ranks itself; remove it")
        args.pop("shuffle", None)
        args["sampler"] = sampler
    _fill_in(args, shuffle=shuffle_default and isinstance(data, Datapoints), where=where)
    generator = {} if args.get("generator") is not None else {"generator": torch.Generator().manual_seed(seed)}
    args = {name: value for name, value in args.items() if name not in generator}
    loader: DataLoader[Any] = build_from_config(
        {**node, "args": args},
        key_path=key_path,
        dataset=data,
        collate_fn=collate if user_collate is None else UserCollate(user_collate),
        **generator,
    )
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{key_path or 'the dataloader'}: found a {type(loader).__name__}; expected a DataLoader")
    for one in _samplers(loader):
        if (shared := getattr(one, "generator", None)) is not None and shared is loader.generator:
            # Each its own: from the loader's the seeds of persistent workers are drawn, in their first epoch only.
            with contextlib.suppress(AttributeError):  # a property
                one.generator = torch.Generator().manual_seed(shared.initial_seed())
    no_share = sampler is not None and not list(sampler)  # fewer items than ranks
    if isinstance(data, Datapoints) and length(loader) == 0 and not no_share:
        raise ConfigError(f"{where}.drop_last: {len(data)} items make no batch; lower batch_size, or set it to False")
    return loader


def length(loader: DataLoader[Any]) -> int | None:
    """How many batches there will be; None for an iterable dataset, or a sampler, that does not say."""
    try:
        return len(loader)
    except TypeError:
        return None


def seed_loader(loader: DataLoader[Any], *, order: int, draws: int, epoch: int) -> None:
    """Have the next epoch's order, and what its workers draw, follow from these seeds.

    Also that of a sampler of the user's, as far as it has its ``generator`` under that name, or a ``set_epoch``.
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
    """All that has a say in the order, each once."""
    found = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return list({id(one): one for one in found if one is not None}.values())


def shuffles(node: dict[str, Any] | None, *, default: bool) -> bool:
    """Whether a dataloader node asks for a new order in every epoch."""
    wanted = (node or {}).get("args", {}).get("shuffle")
    return default if wanted is None else bool(wanted)


def _fill_in(args: dict[str, Any], *, shuffle: bool, where: str) -> None:
    if args.get("batch_sampler") is not None:
        return  # it decides the order and the size
    args.setdefault("batch_size", DEFAULT_BATCH_SIZE)
    if args["batch_size"] is None:
        raise ConfigError(f"{where}.batch_size: found None; expected a number: the runner numbers the items of a batch")
    if args.get("sampler") is None:
        args.setdefault("shuffle", shuffle)
