"""DatapointPages: the members of the first datapoints, each with its own row."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from endoscope import load_debug_outputs
from endoscope.runners.datapoint_pages import DatapointPages, Sample


class Pair(NamedTuple):
    logits: Tensor
    aux: Tensor


@dataclass(frozen=True)
class Output:
    logits: Tensor
    count: int


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


def test_what_the_loop_does_with_a_batch_later_is_not_seen(tmp_path: Path) -> None:
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
