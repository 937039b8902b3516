"""DatapointPages: the members of the first datapoints, each with its own row."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.sameness import canonical
from torch import Tensor

from endoscope import load_debug_outputs, per_datapoint
from endoscope.runners.state.datapoint_pages import DatapointPages, Sample


class Pair(NamedTuple):
    logits: Tensor
    aux: Tensor


@dataclass(frozen=True)
class Output:
    logits: Tensor
    count: int


@dataclass
class Heads:
    logits: Tensor
    boxes: Tensor


def batch(first: int, size: int, outputs: Any = None) -> dict[str, Any]:
    idx = torch.arange(first, first + size)
    return {
        "inputs": idx[:, None].float(),
        "labels": None,
        "meta_info": {"idx": idx, "path": [f"{k}.png" for k in idx.tolist()]},
        "outputs": idx.float() if outputs is None else outputs,
    }


@pytest.mark.parametrize(("sample", "count"), [(1, 1), (3, 3), (4, 4), (6, 6), (9, 9), (100, 9), ("all", 9)])
def test_the_first_n(sample: Sample, count: int, tmp_path: Path) -> None:
    pages = DatapointPages(tmp_path, ("inputs", "labels", "meta_info"), sample)
    for first, size in ((0, 4), (4, 4), (8, 1)):
        pages.add(batch(first, size))
    pages.close()
    found = load_debug_outputs(tmp_path)
    assert sorted(found) == list(range(count))
    for k in found:
        assert set(found[k]) == {"inputs", "meta_info"}
        assert found[k]["inputs"].tolist() == [[k]]
        assert found[k]["meta_info"]["path"] in (f"{k}.png", [f"{k}.png"])


@pytest.mark.parametrize("sample", [None, 0])
def test_none(sample: Sample, tmp_path: Path) -> None:
    pages = DatapointPages(tmp_path / "pages", ("inputs",), sample)
    pages.add(batch(0, 4))
    pages.close()
    assert not (tmp_path / "pages").exists()


SHAPES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda t: t, lambda o: o),
    "dict": (lambda t: {"logits": t, "n": 3}, lambda o: o["logits"]),
    "ordered dict": (lambda t: OrderedDict(logits=t), lambda o: o["logits"]),
    "another mapping": (lambda t: UserDict(logits=t), lambda o: o["logits"]),
    "tuple": (lambda t: (t, t), lambda o: o[1]),
    "named tuple": (lambda t: Pair(t, t), lambda o: o[0]),
    "dataclass": (lambda t: Output(t, 2), lambda o: o["logits"] if isinstance(o, dict) else o.logits),
    "nested": (lambda t: {"a": [{"b": (Pair(t, t),)}]}, lambda o: o["a"][0]["b"][0][1]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_of_any_shape_are_cut_into_rows(shape: str, tmp_path: Path) -> None:
    make, take = SHAPES[shape]
    pages = DatapointPages(tmp_path, ("outputs",), 6)
    for first in (0, 4):
        rows = torch.arange(first, first + 4).float()[:, None] * torch.ones(3)
        pages.add(batch(first, 4, make(rows)))
    pages.close()
    found = load_debug_outputs(tmp_path)
    assert sorted(found) == list(range(6))
    for k in found:
        assert take(found[k]["outputs"]).tolist() == [[k] * 3]


SIZES = (8, 2, 1)


def stored(make: Callable[[list[int]], Any], member: str, sample: Sample, folder: Path) -> dict[int, Any]:
    """What each datapoint reads back of a member, made from the numbers in each batch; the last batches are short."""
    pages = DatapointPages(folder, (member,), sample)
    first = 0
    for size in SIZES:
        numbers = [*range(first, first + size)]
        pages.add({"meta_info": {"idx": torch.tensor(numbers)}, member: make(numbers)})
        first += size
    pages.close()
    found = load_debug_outputs(folder)
    return {k: found[k][member] for k in found}


def rows_of(numbers: list[int]) -> Tensor:
    return torch.tensor([[10.0 * k, 10 * k + 1, 10 * k + 2] for k in numbers])


# Computed row by row: what one datapoint must read back is the same of its row alone.
STRUCTURES: dict[str, Callable[[Tensor], Any]] = {
    "as many as the last but one has datapoints": lambda z: [z, 2 * z],
    "as many as the last has datapoints": lambda z: [z],
    "as many as the first has datapoints": lambda z: [z * k for k in range(8)],
    "of different shapes": lambda z: [z[:, 0], z[:, :2, None]],
    "of dicts": lambda z: [{"a": z, "b": -z}, {"a": 2 * z, "b": z}],
    "of lists": lambda z: [[z, 2 * z], [3 * z, 4 * z]],
    "with nothing in one place": lambda z: [z, None],
    "of tuples": lambda z: [(z, -z), (2 * z,)],
    "of named tuples": lambda z: [Pair(z, -z), Pair(2 * z, z)],
    "of dataclasses": lambda z: [Heads(z, -z), Heads(2 * z, z)],
    "in a dict": lambda z: {"heads": [z, 2 * z], "n": 3},
}


@pytest.mark.parametrize("sample", ["all", 9, 10])
@pytest.mark.parametrize("member", ["outputs", "inputs"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_list_of_batched_tensors_is_cut_like_any_structure_however_long_the_batch(
    structure: str, member: str, sample: Sample, tmp_path: Path
) -> None:
    make = STRUCTURES[structure]
    found = stored(lambda numbers: make(rows_of(numbers)), member, sample, tmp_path)
    assert sorted(found) == list(range(11 if sample == "all" else int(sample or 0)))
    for k, value in found.items():
        assert canonical(value) == canonical(make(rows_of([k])))


ENTRIES: dict[str, Callable[[int], Any]] = {
    "texts": lambda k: f"text {k}",
    "numbers": lambda k: k,
    "tensors of any length": lambda k: torch.full((3 + k, 4), k),
    "tensors of which some are as long as the batch of two": lambda k: torch.full((5 if k % 2 else 2, 4), k),
    "tensors without a dimension": lambda k: torch.tensor(k),
    "dicts of tensors of any length": lambda k: {"boxes": torch.full((3 + k, 4), k), "labels": torch.full((3 + k,), k)},
    "dicts of tensors as long as the batch of two, and numbers": lambda k: {"boxes": torch.full((2, 4), k), "image": k},
    "lists of texts": lambda k: ["a", str(k)],
    "lists with nothing in them": lambda k: [],
}


@pytest.mark.parametrize("sample", ["all", 9])
@pytest.mark.parametrize("member", ["outputs", "inputs", "labels"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_any_other_list_as_long_as_the_batch_has_one_entry_a_datapoint(
    entry: str, member: str, sample: Sample, tmp_path: Path
) -> None:
    found = stored(lambda numbers: [ENTRIES[entry](k) for k in numbers], member, sample, tmp_path)
    assert len(found) == (11 if sample == "all" else 9)
    for k, value in found.items():
        assert canonical(value) == canonical(ENTRIES[entry](k))


@pytest.mark.parametrize("sample", ["all", 9])
def test_a_list_that_is_marked_has_one_entry_a_datapoint_whatever_is_in_it(sample: Sample, tmp_path: Path) -> None:
    """Two clips of two channels look like a structure."""
    found = stored(lambda numbers: per_datapoint([torch.full((2, 5), k) for k in numbers]), "inputs", sample, tmp_path)
    assert len(found) == (11 if sample == "all" else 9)
    for k, value in found.items():
        assert canonical(value) == canonical(torch.full((2, 5), k))


@pytest.mark.parametrize("sequence", [list, tuple])
def test_lists_of_a_users_collate_have_one_entry_a_datapoint_whatever_is_in_them(
    sequence: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Three images of three channels look like a structure."""
    images = [torch.rand(3, 4, 4) for _ in range(3)]
    pages = DatapointPages(tmp_path, ("inputs",), 2, listed=True)
    pages.add({"meta_info": {"idx": torch.arange(3)}, "inputs": sequence(images)})
    pages.close()
    found = load_debug_outputs(tmp_path)
    assert sorted(found) == [0, 1]
    assert all(torch.equal(found[k]["inputs"], images[k]) for k in found)


def test_two_views_of_a_users_collate_are_a_structure_also_in_a_batch_of_two(tmp_path: Path) -> None:
    pages = DatapointPages(tmp_path, ("inputs",), "all", listed=True)
    for first, size in ((0, 4), (4, 2)):
        z = rows_of([*range(first, first + size)])
        pages.add({"meta_info": {"idx": torch.arange(first, first + size)}, "inputs": [z, 2 * z]})
    pages.close()
    found = load_debug_outputs(tmp_path)
    for k in range(6):
        assert canonical(found[k]["inputs"]) == canonical([rows_of([k]), 2 * rows_of([k])])


def test_heads_as_many_as_datapoints_from_the_first_batch_on(tmp_path: Path) -> None:
    z = rows_of([0, 1, 2])
    pages = DatapointPages(tmp_path, ("outputs",), "all")
    heads = [{"logits": k * z} for k in range(3)]
    pages.add({"meta_info": {"idx": torch.arange(3)}, "outputs": {"aux": heads}})
    pages.close()
    found = load_debug_outputs(tmp_path)
    for k in range(3):
        expected = {"aux": [{"logits": n * rows_of([k])} for n in range(3)]}
        assert canonical(found[k]["outputs"]) == canonical(expected)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1), (3, 1)])
def test_detections_as_many_as_images(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Every image has as many boxes as there are images in the batch, so that all could be rows."""
    pages = DatapointPages(tmp_path, ("outputs",), "all")
    made: dict[int, dict[str, Tensor]] = {}
    for size in sizes:
        numbers = [*range(len(made), len(made) + size)]
        made |= {k: {"boxes": torch.full((size, 4), k), "scores": torch.full((size,), float(k))} for k in numbers}
        pages.add({"meta_info": {"idx": torch.tensor(numbers)}, "outputs": [made[k] for k in numbers]})
    pages.close()
    found = load_debug_outputs(tmp_path)
    for k, expected in made.items():
        assert canonical(found[k]["outputs"]) == canonical(expected)


def test_fields_of_meta_info_have_one_entry_a_datapoint_whatever_is_in_them(tmp_path: Path) -> None:
    """Clips of two channels and different lengths stay a list when a batch is made."""
    clips = [torch.full((2, 5), 4), torch.full((2, 7), 5)]
    pages = DatapointPages(tmp_path, ("meta_info",), "all")
    pages.add({"meta_info": {"idx": torch.tensor([4, 5]), "clip": clips}})
    pages.close()
    found = load_debug_outputs(tmp_path)
    for k, clip in zip((4, 5), clips, strict=True):
        assert canonical(found[k]["meta_info"]["clip"]) == canonical(clip)


def test_a_list_in_meta_info_that_is_not_as_long_as_the_batch_is_everyones(tmp_path: Path) -> None:
    pages = DatapointPages(tmp_path, ("meta_info",), 3)
    pages.add({"meta_info": {"idx": torch.arange(4), "scale": [1.0, 2.0, 3.0]}})
    pages.close()
    found = load_debug_outputs(tmp_path)
    assert [found[k]["meta_info"]["scale"] for k in found] == [[1.0, 2.0, 3.0]] * 3


def test_later_changes_of_a_batch_are_not_stored(tmp_path: Path) -> None:
    pages = DatapointPages(tmp_path, ("inputs",), "all")
    one = batch(0, 4)
    pages.add(one)
    one["inputs"].zero_()
    pages.close()
    assert load_debug_outputs(tmp_path)[3]["inputs"].tolist() == [[3]]


def test_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    for first in (0, 10):
        pages = DatapointPages(tmp_path, ("inputs",), "all")
        pages.add(batch(first, 4))
        pages.close()
    assert sorted(load_debug_outputs(tmp_path)) == [10, 11, 12, 13]
