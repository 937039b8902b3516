"""Tensors and arrays of every kind: their finite range, and what is shown of their statistics."""

from __future__ import annotations

import math
import resource
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from tests.viewer import quiet

from endoscope.render import numbers
from endoscope.render.numbers import Numbers, finite_range, is_numbers, statistics

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_values_are_counted_and_the_finite_ones_have_a_range(dtype: torch.dtype) -> None:
    t = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert statistics(Numbers(t)).non_finite == 0
    assert finite_range(Numbers(t)) == (t.min().item(), t.max().item())
    t[0, 0, 0], t[1, 2, 3], t[2, 0, 0], t[2, 0, 1] = NAN, INF, -INF, NAN
    found = statistics(Numbers(t))
    assert (found.nan, found.inf, found.non_finite, found.count, found.over) == (2, 2, 4, t.numel(), "all values")
    assert all(value is not None and math.isnan(value) for value in (found.min, found.mean, found.max, found.std))
    finite = t[torch.isfinite(t)]
    assert finite_range(Numbers(t)) == (finite.min().item(), finite.max().item())


def test_large_integers_are_exact() -> None:
    x = Numbers(torch.tensor([2**62 + 1, -(2**62) - 1]))
    assert (statistics(x).min, statistics(x).max) == finite_range(x) == (-(2**62) - 1, 2**62 + 1)


@pytest.mark.parametrize("shape", [(), (1,), (5, 3)])
def test_booleans_count_as_0_and_1(shape: tuple[int, ...]) -> None:
    found = statistics(Numbers(torch.ones(shape, dtype=torch.bool)))
    assert (found.min, found.mean, found.max, found.std) == (1, 1.0, 1, 0.0 if found.count > 1 else None)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_values_by_their_magnitude_and_said_so(dtype: torch.dtype) -> None:
    x = Numbers(torch.tensor([3 + 4j, 0j, complex(NAN, 1)]).to(dtype))
    assert (statistics(x).nan, finite_range(x)) == (1, (0.0, 5.0))
    assert "magnitude" in statistics(x).over


@pytest.mark.parametrize(
    ("t", "ends"),
    [(torch.full((4,), NAN), (NAN, NAN)), (torch.tensor([INF, -INF]), (-INF, INF)), (torch.empty(0, 3), (None, None))],
)
def test_without_a_finite_value_there_is_no_finite_range(t: torch.Tensor, ends: tuple[Any, Any]) -> None:
    found = statistics(Numbers(t))
    assert (found.min, found.max) == pytest.approx(ends, nan_ok=True)
    assert found.nan + found.inf == found.count == t.numel()
    assert finite_range(Numbers(t)) is None


def test_all_chunks_are_in_the_finite_range() -> None:
    t = torch.zeros(3 * 65536 + 5)
    t[0], t[70_000], t[-1] = NAN, 4.0, -2.0
    assert finite_range(Numbers(t)) == (-2.0, 4.0)


def test_numpy_arrays_of_numbers_and_no_others() -> None:
    assert is_numbers(np.zeros(3, np.uint16))
    assert not is_numbers(np.array(["a"]))
    assert not is_numbers([1.0])
    for array in (np.arange(6, dtype=np.uint16)[::-1], np.arange(6, dtype=">f4"), np.broadcast_to(np.float64(5), 3)):
        assert (statistics(Numbers(array)).max, finite_range(Numbers(array))) == (5, (array.min(), 5))


@pytest.mark.parametrize(
    ("t", "said"),
    [
        (torch.eye(4).to_sparse(), "shown with its zeros"),
        (quiet.csr(), "shown with its zeros"),
        (quiet.quantized(4), "dequantized"),
    ],
)
def test_other_layouts_say_what_is_shown(t: torch.Tensor, said: str) -> None:
    found = statistics(Numbers(t))
    assert said in found.over
    assert found.max == pytest.approx(1.0)


def test_a_sparse_tensor_that_is_too_large_shows_what_it_stores() -> None:
    t = quiet.sparse(torch.tensor([[5], [7]]), torch.tensor([3.0]), (1 << 20, 1 << 20))
    x = Numbers(t)
    assert x.shape == (1,)
    assert "only the stored values" in statistics(x).over


def test_more_values_than_are_taken_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "STATISTICS_OF", 10)
    found = statistics(Numbers(torch.arange(100.0)))
    assert found.max == 9.0
    assert found.count == 100
    assert found.over == "the first 10 of 100 values"


def test_a_large_tensor_costs_no_copy_of_itself() -> None:
    t = torch.zeros(1 << 25, dtype=torch.bfloat16)  # 64 MB, which would be 128 MB as float32
    statistics(Numbers(t[:100_000]))  # torch has loaded what it needs
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = statistics(Numbers(t))
    Numbers(t).take(np.s_[:10])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.max == 0.0
    assert peak < 16 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # kB, torch's memory included


@pytest.mark.parametrize(
    "changed", [torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1.0, 2.0, 3.0]).double()]
)
def test_the_digest_is_that_of_shape_type_and_values(changed: torch.Tensor) -> None:
    def digest(value: Any) -> str:
        return Numbers(value).digest()

    assert digest(torch.tensor([1.0, 2.0, 3.0])) == digest(torch.tensor([1.0, 2.0, 3.0]))
    assert digest(changed) != digest(torch.tensor([1.0, 2.0, 3.0]))


def test_the_statistics_of_one_value() -> None:
    found = statistics(Numbers(torch.tensor(3.5)))
    assert (found.min, found.mean, found.max, found.std) == (3.5, 3.5, 3.5, None)
