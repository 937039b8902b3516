"""Statistics of tensors of every kind, against another computation of the same."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from tests.viewer import quiet

from endoscope.render import numbers
from endoscope.render.numbers import Numbers, is_numbers, statistics

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def expected(t: torch.Tensor) -> tuple[float, float, float, float, int, int]:
    """By torch, in one go, in double precision."""
    x = (t.abs() if t.is_complex() else t).to(torch.float64).flatten()
    finite = x[torch.isfinite(x)]
    spread = finite.std().item()
    nan, inf = int(torch.isnan(x).sum()), int(torch.isinf(x).sum())
    return finite.min().item(), finite.mean().item(), finite.max().item(), spread, nan, inf


def check(t: torch.Tensor) -> None:
    found = statistics(Numbers(t))
    low, mean, high, std, nan, inf = expected(t)
    assert (found.nan, found.inf, found.count) == (nan, inf, t.numel())
    exact = 1e-6 if t.is_complex() else 0.0  # of a magnitude the last digit is anybody's
    assert (found.min, found.max) == pytest.approx((low, high), rel=exact, abs=0.0)
    assert found.mean == pytest.approx(mean, rel=max(1e-9, exact), abs=1e-12)
    assert found.std == pytest.approx(std, rel=max(1e-9, exact), abs=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_with_and_without_what_is_not_finite(dtype: torch.dtype) -> None:
    t = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(t)
    assert statistics(Numbers(t)).over == "all values"
    t[0, 0, 0], t[1, 2, 3], t[2, 0, 0], t[2, 0, 1] = NAN, INF, -INF, NAN
    check(t)
    assert statistics(Numbers(t)).over == "finite values"


@pytest.mark.parametrize("dtype", INTS)
def test_integers(dtype: torch.dtype) -> None:
    check(torch.randint(0, 100, (40,), dtype=dtype, generator=torch.Generator().manual_seed(2)))


def test_large_integers_are_exact() -> None:
    found = statistics(Numbers(torch.tensor([2**62 + 1, -(2**62) - 1])))
    assert (found.min, found.max) == (-(2**62) - 1, 2**62 + 1)


@pytest.mark.parametrize("shape", [(), (1,), (5, 3)])
def test_booleans_count_as_0_and_1(shape: tuple[int, ...]) -> None:
    found = statistics(Numbers(torch.ones(shape, dtype=torch.bool)))
    assert (found.min, found.mean, found.max, found.std) == (1, 1.0, 1, 0.0 if found.count > 1 else None)


def test_complex_values_by_their_magnitude_and_said_so() -> None:
    t = torch.tensor([3 + 4j, 0j, complex(NAN, 1)])
    found = statistics(Numbers(t))
    assert (found.min, found.max, found.nan) == (0.0, 5.0, 1)
    assert "magnitude" in found.over
    check(torch.view_as_complex(torch.randn(10, 2, generator=torch.Generator().manual_seed(3))))


@pytest.mark.parametrize("t", [torch.empty(0, 3), torch.full((4,), NAN), torch.tensor([INF, -INF])])
def test_without_a_finite_value_there_are_counts_only(t: torch.Tensor) -> None:
    found = statistics(Numbers(t))
    assert (found.min, found.mean, found.max, found.std) == (None, None, None, None)
    assert found.nan + found.inf == found.count == t.numel()


def test_values_at_the_edge_of_their_type_do_not_overflow() -> None:
    most = torch.finfo(torch.float64).max
    found = statistics(Numbers(torch.tensor([most, most, -most, -most], dtype=torch.float64) / 2))
    assert found.mean == pytest.approx(0.0)
    assert found.std == pytest.approx(most / math.sqrt(3))
    big = statistics(Numbers(torch.full((1000,), torch.finfo(torch.float32).max)))
    assert big.mean == pytest.approx(torch.finfo(torch.float32).max)
    assert big.std == pytest.approx(0.0, abs=1e25)


def test_large_values_after_small_ones_in_another_chunk() -> None:
    t = torch.ones(numbers._CHUNK + 10, dtype=torch.float64)
    t[-5:] = 1e200
    found, low_level = statistics(Numbers(t)), t.numpy()
    assert found.mean == pytest.approx(float(low_level.mean()))
    scaled = low_level / 1e200
    assert found.std == pytest.approx(float(scaled.std(ddof=1)) * 1e200, rel=1e-6)


def test_several_chunks_are_one_population() -> None:
    check(torch.randn(numbers._CHUNK * 2 + 17, generator=torch.Generator().manual_seed(4)) * 3 + 100)


def test_numpy_arrays_of_numbers_and_no_others() -> None:
    assert is_numbers(np.zeros(3, np.uint16))
    assert not is_numbers(np.array(["a"]))
    assert not is_numbers([1.0])
    assert statistics(Numbers(np.arange(6, dtype=np.uint16)[::-1])).max == 5


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
    t = torch.zeros(1 << 26, dtype=torch.bfloat16)  # 128 MB, which would be 256 MB as float32
    tracemalloc.start()
    found = statistics(Numbers(t))
    Numbers(t).take(np.s_[:10])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.max == 0.0
    assert peak < 64 << 20


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
