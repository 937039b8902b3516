"""Real DataLoaders, in this process and with two workers."""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

from endoscope.errors import ConfigError, DatapointError
from endoscope.runners.data.datapoints import adapt
from endoscope.runners.data.loaders import length, make_loader, seed_loader, shuffles

WORKERS = [0, 2]


class Numbers(Dataset[Any]):
    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([float(i)]), i, {"name": f"n{i}"}


class Noisy(Numbers):
    """Augments with all three generators."""

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


class Ragged(Numbers):
    def __getitem__(self, i: int) -> Any:
        return torch.zeros(1 + i % 3), i


class Stream(IterableDataset[Any]):
    """Shares its items among workers, as such datasets must."""

    def __init__(self, *, own_idx: bool = False) -> None:
        self.own_idx = own_idx

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for i in range(first, 10, step):
            yield (torch.tensor([float(i)]), i, {"idx": i}) if self.own_idx else (torch.tensor([float(i)]), i)


def node(**args: Any) -> dict[str, Any]:
    return {"class": DataLoader, "args": args}


def loader(given: Any, dataset: Any, *, shuffle: bool = False, seed: int = 0, **more: Any) -> DataLoader[Any]:
    return make_loader(given, dataset, shuffle_default=shuffle, seed=seed, **more)


def indices(batches: Any) -> list[list[int]]:
    return [batch["meta_info"]["idx"].tolist() for batch in batches]


def failure(made: DataLoader[Any]) -> str:
    """The error of a loader. Workers that only the garbage collector finds end slowly, so its frames are let go."""
    try:
        list(made)
    except DatapointError as error:
        traceback.clear_frames(error.__traceback__)
        return str(error)
    raise AssertionError("no error")


def pad(items: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True), torch.tensor([y for _, y in items])


def test_the_default_loader() -> None:
    made = loader(None, Numbers(40))
    assert type(made) is DataLoader
    assert indices(made) == [list(range(32)), list(range(32, 40))]


def test_a_node_of_a_text_and_without_args() -> None:
    assert loader({"class": "torch.utils.data.DataLoader"}, Numbers()).batch_size == 32


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_have_the_shape_of_datapoints(workers: int) -> None:
    batches = list(loader(node(batch_size=8, num_workers=workers), Numbers()))
    assert indices(batches) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    last = batches[-1]
    assert list(last) == ["inputs", "labels", "meta_info"]
    assert last["inputs"].flatten().tolist() == [16.0, 17.0, 18.0, 19.0]
    assert last["labels"].tolist() == [16, 17, 18, 19]
    assert last["meta_info"]["name"] == ["n16", "n17", "n18", "n19"]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_order_repeats_with_the_seed_and_changes_with_the_epoch(workers: int) -> None:
    given = node(batch_size=8, num_workers=workers)
    made = loader(given, Numbers(), shuffle=True)
    first, second = indices(made), indices(made)
    again = loader(given, Numbers(), shuffle=True)
    assert [indices(again), indices(again)] == [first, second]
    assert first != second
    assert sorted(itertools.chain(*first)) == list(range(20))
    assert indices(loader(given, Numbers(), shuffle=True, seed=1)) != first


def test_the_order_does_not_depend_on_the_number_of_workers() -> None:
    orders = [indices(loader(node(batch_size=8, num_workers=n), Numbers(), shuffle=True)) for n in WORKERS]
    assert orders[0] == orders[1]


def noise(seed: int, state: torch.Tensor | None = None) -> torch.Tensor:
    made = loader(node(batch_size=4, num_workers=2), Noisy(), seed=seed)
    if state is not None:
        made.generator.set_state(state)
    return torch.cat([batch["inputs"] for batch in made])


def test_augmentation_in_workers_repeats_with_the_seed() -> None:
    random.seed(1)
    np.random.seed(1)
    first = noise(0)
    random.seed(2)
    np.random.seed(2)
    assert torch.equal(noise(0), first)
    assert (noise(1) != first).all()
    assert len(first.unique()) == first.numel()  # no two workers draw the same


def test_the_state_of_the_generator_repeats_an_epoch() -> None:
    made = loader(node(batch_size=4, num_workers=2), Noisy())
    list(made)
    state = made.generator.get_state()
    second = torch.cat([batch["inputs"] for batch in made])
    assert torch.equal(noise(5, state), second)


def test_the_loops_own_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    list(loader(node(batch_size=8), Numbers(), shuffle=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # type: ignore[index]


def test_what_the_node_says_goes_before_the_defaults() -> None:
    generator = torch.Generator()
    made = loader(node(batch_size=5, shuffle=False, generator=generator, drop_last=True), Numbers(12), shuffle=True)
    assert made.generator is generator
    assert indices(made) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_sampler_of_the_node_takes_the_place_of_shuffle() -> None:
    sampler = {"class": WeightedRandomSampler, "args": {"weights": [0.0, 1.0], "num_samples": 3}}
    assert indices(loader(node(sampler=sampler), Numbers(2), shuffle=True)) == [[1, 1, 1]]


def test_a_batch_sampler_of_the_node_decides_the_batches() -> None:
    assert indices(loader(node(batch_sampler=[[3, 1], [2]]), Numbers(), shuffle=True)) == [[3, 1], [2]]


def test_the_runners_sampler_takes_the_place_of_shuffle() -> None:
    assert indices(loader(node(shuffle=True), Numbers(), shuffle=True, sampler=[4, 2])) == [[4, 2]]


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_two_samplers_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader(node(**{name: [0]}), Numbers(), sampler=[1], key_path="val_dataloader")
    assert str(caught.value) == (
        f"val_dataloader.args.{name}: the runner shares the data among the ranks itself; remove it"
    )


def test_an_adapted_dataset_serves() -> None:
    data = adapt(Numbers())
    assert loader(None, data).dataset is data


def test_the_node_is_not_changed() -> None:
    given = node(batch_size=4, collate_fn=pad)
    list(loader(given, Ragged()))
    assert given == node(batch_size=4, collate_fn=pad)


# ---- a user's own collate_fn
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dataset", [Ragged(), adapt(Ragged())])
def test_a_collate_fn_joins_what_differs(workers: int, dataset: Any) -> None:
    batches = list(loader(node(batch_size=8, num_workers=workers, collate_fn=pad), dataset))
    assert indices(batches) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert batches[0]["inputs"].shape == (8, 3)
    assert batches[0]["labels"].tolist() == list(range(8))


def make_pad() -> Any:
    return pad


def test_a_collate_fn_may_be_a_node() -> None:
    batches = list(loader(node(batch_size=10, collate_fn={"class": make_pad}), Ragged()))
    assert batches[0]["inputs"].shape == (10, 3)


@pytest.mark.parametrize("workers", WORKERS)
def test_without_one_different_shapes_are_an_error_that_tells_of_it(workers: int) -> None:
    text = failure(loader(node(batch_size=8, num_workers=workers), Ragged()))
    assert "inputs: shape (1,) for datapoint 0 and shape (2,) for datapoint 1 do not make a batch" in text
    assert "set a 'collate_fn' in the dataloader node that joins them" in text


# ---- iterable datasets
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_numbered_by_one_worker(workers: int) -> None:
    batches = list(loader(node(batch_size=4, num_workers=workers), Stream(), shuffle=True))
    assert indices(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0]["labels"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("collate_fn", [None, pad])
def test_several_workers_cannot_number_a_stream(collate_fn: Any) -> None:
    text = failure(loader(node(batch_size=4, num_workers=2, collate_fn=collate_fn), Stream()))
    assert "give every item its own meta_info.idx, or use num_workers 0 or 1" in text


def test_several_workers_serve_a_stream_that_numbers_itself() -> None:
    batches = list(loader(node(batch_size=4, num_workers=2), Stream(own_idx=True)))
    assert sorted(itertools.chain(*indices(batches))) == list(range(10))
    assert all(batch["labels"].tolist() == batch["meta_info"]["idx"].tolist() for batch in batches)


class NoLength(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(20))


class NoLoader:
    def __init__(self, **_: Any) -> None:
        pass


def test_a_sampler_that_does_not_say_how_many_there_are() -> None:
    made = loader(node(batch_size=8, sampler=NoLength()), Numbers())
    assert length(made) is None
    assert indices(made) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_what_is_no_dataloader_is_refused() -> None:
    with pytest.raises(ConfigError, match="^val_dataloader: found a NoLoader; expected a DataLoader"):
        loader({"class": NoLoader}, Numbers(), key_path="val_dataloader")


class Drawn(Numbers):
    """Every item with what its worker draws."""

    def __getitem__(self, k: int) -> Any:
        return {"inputs": torch.rand(()), "labels": k}


@pytest.mark.parametrize("given", [node(num_workers=2), node(num_workers=2, persistent_workers=True)])
def test_order_and_draws_are_seeded_apart(given: Any) -> None:
    """Ranks have one order to share, and draws of their own."""
    seen = []
    for order, draws in ((1, 1), (1, 2), (2, 1), (1, 1)):
        made = loader(given, Drawn(), shuffle=True)
        seed_loader(made, order=order, draws=draws, epoch=0)
        (batch,) = made
        seen.append((batch["meta_info"]["idx"].tolist(), batch["inputs"].tolist()))
    first, other_draws, other_order, again = seen
    assert again == first
    assert other_draws[0] == first[0] and other_draws[1] != first[1]
    assert other_order[0] != first[0] and other_order[1] == first[1]


class Told(torch.utils.data.SequentialSampler):
    epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("batched", [False, True])
def test_samplers_get_the_epoch(batched: bool) -> None:
    sampler = Told(range(20))
    batches = torch.utils.data.BatchSampler(sampler, 8, False)
    made = loader(node(batch_sampler=batches) if batched else node(sampler=sampler), Numbers())
    seed_loader(made, order=0, draws=0, epoch=3)
    assert sampler.epoch == 3


def test_a_generator_that_is_the_loaders_too_becomes_two() -> None:
    both = torch.Generator().manual_seed(4)
    sampler = torch.utils.data.RandomSampler(range(20), generator=both)
    batches = torch.utils.data.BatchSampler(sampler, 8, False)
    made = loader(node(batch_sampler=batches, generator=both), Numbers())
    assert made.generator is both and sampler.generator is not both


def test_a_generator_that_cannot_be_exchanged_is_left() -> None:
    class Fixed(torch.utils.data.SequentialSampler):
        @property
        def generator(self) -> torch.Generator:
            return both

    both = torch.Generator().manual_seed(4)
    made = loader(node(batch_size=8, sampler=Fixed(range(20)), generator=both), Numbers())
    seed_loader(made, order=0, draws=0, epoch=0)
    assert indices(made) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_persistent_workers_have_the_order_of_new_ones() -> None:
    orders = []
    for persistent in (False, True):
        made = loader(node(batch_size=8, num_workers=1, persistent_workers=persistent), Numbers(), shuffle=True)
        seen = []
        for epoch in range(3):
            seed_loader(made, order=epoch, draws=0, epoch=epoch)
            seen.append(indices(made))
        orders.append(seen)
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


# ---- what cannot work
@pytest.mark.parametrize(
    ("given", "count", "expected"),
    [
        (
            node(batch_size=32, drop_last=True),
            20,
            "val_dataloader.args.drop_last: 20 items make no batch; lower batch_size, or set it to False",
        ),
        (
            node(batch_size=None),
            20,
            "val_dataloader.args.batch_size: found None; expected the number of datapoints in a batch",
        ),
        (node(shuffle="no"), 20, "val_dataloader.args.shuffle: found 'no'; expected True or False"),
        (node(drop_last=1), 20, "val_dataloader.args.drop_last: found 1; expected True or False"),
        (
            node(batchsize=8),
            20,
            "val_dataloader.args.batchsize: DataLoader takes no such argument; "
            "closest: 'batch_size', 'batch_sampler', 'dataset'",
        ),
        (
            node(dataset=[]),
            20,
            "val_dataloader.args.dataset: given by the config and the code that builds DataLoader; "
            "remove it from the config",
        ),
    ],
)
def test_a_loader_that_cannot_work(given: Any, count: int, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader(given, Numbers(count), key_path="val_dataloader")
    assert str(caught.value).splitlines()[0] == expected


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [(None, True, True), (None, False, False), (node(), True, True), (node(shuffle=False), True, False),
     (node(shuffle=True), False, True), (node(shuffle=None), True, True)],
)  # fmt: skip
def test_whether_a_node_asks_for_a_new_order(given: Any, default: bool, expected: bool) -> None:
    assert shuffles(given, default=default) is expected
