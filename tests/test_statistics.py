from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from endoscope.statistics import (
    as_rows,
    channel_dim,
    channel_statistics,
    datapoint_shape,
    first_values,
    fraction_zero,
    fractions,
    l1_norm,
    l2_norm,
    summarize,
)

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
COMPLEX = [torch.complex64, torch.complex128]


def reference(x: torch.Tensor) -> dict[str, list[float]]:
    """By the book, in float64, one datapoint at a time."""
    rows = x.reshape(1, -1) if x.ndim == 0 else x.reshape(x.shape[0], -1)
    values = (rows.to(torch.complex128).abs() if x.is_complex() else rows.double()).numpy()
    n = values.shape[1]
    with np.errstate(all="ignore"):
        return {
            "mean": [float(r.mean()) for r in values],
            "std": [float(r.std(ddof=1)) if n > 1 else math.nan for r in values],
            "min": [float(r.min()) for r in values],
            "max": [float(r.max()) for r in values],
            "non_finite": [int(n - np.isfinite(r).sum()) for r in values],
        }


def assert_same(
    found: dict[str, list[float]], expected: dict[str, list[float]], rel: float, scale: float = 1.0
) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        close = pytest.approx(expected[name], rel=rel, abs=1e-7 * scale if name == "mean" else 0.0, nan_ok=True)
        assert values == close, name


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + COMPLEX, ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 7, 3), (4, 5, 7, 3), (1, 1000), (3, 1000), (6,)], ids=str)
def test_every_dtype_as_in_float64(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 20 + 40).abs()
    x = torch.complex(x, -x).to(dtype) if dtype in COMPLEX else (x > 40 if dtype is torch.bool else x.to(dtype))
    assert_same(summarize(x), reference(x), rel=2e-6, scale=40)


def test_numbers_are_plain_python() -> None:
    for values in summarize(torch.randn(2, 3)).values():
        assert all(type(v) in (int, float) for v in values)
    assert [type(v) for v in summarize(torch.ones(2, 3))["non_finite"]] == [int, int]


@settings(deadline=None, max_examples=200)
@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=6),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_any_float32_array(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    found, expected = summarize(x), reference(x)
    assert found["min"] == pytest.approx(expected["min"], rel=0, nan_ok=True)
    assert found["max"] == pytest.approx(expected["max"], rel=0, nan_ok=True)
    assert found["non_finite"] == expected["non_finite"]
    for j, (low, high) in enumerate(zip(expected["min"], expected["max"], strict=True)):
        largest = max(abs(low), abs(high))
        if math.isfinite(largest):
            assert found["mean"][j] == pytest.approx(expected["mean"][j], rel=1e-6, abs=2e-7 * largest)
            # What float32 can hold of a spread that is small beside the values themselves.
            slack = 1e-6 * (high - low) + 1e-12 * largest
            assert found["std"][j] == pytest.approx(expected["std"][j], rel=1e-5, abs=slack, nan_ok=True)
        else:
            assert found["mean"][j] == pytest.approx(expected["mean"][j], nan_ok=True)
            assert math.isnan(found["std"][j])


@pytest.mark.parametrize("offset", [0.0, 0.5, 3.0, 1e4, -1e6])
@pytest.mark.parametrize("shape", [(1, 4096), (3, 4096), (1, 300_007), (2, 300_007)], ids=str)
def test_spread_is_accurate_beside_a_large_mean(offset: float, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + offset
    assert_same(summarize(x), reference(x), rel=5e-6)
    assert l2_norm(x) == pytest.approx(x.double().norm(dim=1).tolist(), rel=5e-6)
    assert l1_norm(x) == pytest.approx(x.double().abs().mean(1).tolist(), rel=1e-6)


def test_difference_of_moments_would_not_be() -> None:
    x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(1)) + 1e6
    naive = (x.square().mean() - x.mean().square()).clamp_min(0).sqrt()
    assert naive.item() != pytest.approx(x.double().std().item(), rel=0.1)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-20, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("batch", [1, 2])
def test_squares_and_sums_out_of_range(scale: float, batch: int) -> None:
    x = torch.tensor([[1.0, 2.5, -2.0, 3.0]] * batch) * scale
    assert_same(summarize(x), reference(x), rel=1e-6, scale=scale)
    assert l2_norm(x) == pytest.approx(x.double().norm(dim=1).tolist(), rel=1e-6)
    assert l1_norm(x) == pytest.approx(x.double().abs().mean(1).tolist(), rel=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
def test_equal_values_at_the_end_of_the_range(batch: int) -> None:
    found = summarize(torch.full((batch, 100), 3e38))
    assert found["mean"] == pytest.approx([3e38] * batch)
    assert found["std"] == [0.0] * batch
    assert found["non_finite"] == [0] * batch


@pytest.mark.parametrize("batch", [1, 2])
def test_float64_to_its_ends(batch: int) -> None:
    found = summarize(torch.tensor([[1e308, -1e308, 0.0]] * batch, dtype=torch.float64))
    assert (found["mean"], found["std"]) == ([0.0] * batch, [pytest.approx(1e308)] * batch)


def test_integers_beyond_float32() -> None:
    x = torch.tensor([[2**40 + 1, 2**40 + 3]])
    assert summarize(x)["min"] == [2**40 + 1]
    assert summarize(torch.tensor([[2**24 + 1]], dtype=torch.int32))["max"] == [2**24 + 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_non_finite_values_are_counted_and_show(dtype: torch.dtype, batch: int) -> None:
    x = torch.ones(batch, 8, dtype=dtype)
    x[0, :2] = torch.tensor([math.nan, math.inf])
    found = summarize(x)
    assert found["non_finite"] == [2] + [0] * (batch - 1)
    assert all(math.isnan(found[name][0]) for name in ("mean", "std", "min", "max"))
    assert found["mean"][1:] == [1.0] * (batch - 1)
    assert math.isnan(l1_norm(x)[0])
    assert math.isnan(l2_norm(x)[0])


@pytest.mark.parametrize(
    "rows", [[[1.0, 2.0, 3.0], [math.nan, math.inf, -math.inf]], [[3e38, 3e38, -1.0], [1.0, 2.0, 3.0]]]
)
def test_nothing_is_warned_of(rows: list[list[float]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (torch.tensor(rows), torch.tensor(rows[::-1])):
            summarize(x)


def test_infinity_alone_keeps_the_other_bound() -> None:
    found = summarize(torch.tensor([[1.0, -math.inf], [2.0, 3.0]]))
    assert (found["mean"], found["min"], found["max"]) == ([-math.inf, 2.5], [-math.inf, 2.0], [1.0, 3.0])
    assert math.isnan(found["std"][0])


@pytest.mark.parametrize(("shape", "rows"), [((0,), 1), ((0, 4), 1), ((3, 0), 3), ((2, 4, 0, 5), 2)], ids=str)
def test_empty_tensors(shape: tuple[int, ...], rows: int) -> None:
    x = torch.zeros(shape)
    found = summarize(x)
    assert found.pop("non_finite") == [0] * rows
    others = [*found.values(), l1_norm(x), l2_norm(x), fraction_zero(x)]
    assert all(len(v) == rows and all(map(math.isnan, v)) for v in others)
    assert first_values(x, 5) == [[]] * rows


def test_one_element_and_no_dimension() -> None:
    for x in (torch.tensor(3.0), torch.tensor([3.0]), torch.tensor(3)):
        found = summarize(x)
        assert (found["mean"], found["min"], found["max"]) == ([3.0], [3.0], [3.0])
        assert math.isnan(found["std"][0])
    assert first_values(torch.tensor(3), 5) == [[3.0]]
    assert datapoint_shape(torch.tensor(3.0)) == []


def test_whatever_lies_differently_in_memory() -> None:
    x = torch.randn(3, 6, 5, 4, generator=torch.Generator().manual_seed(2))
    layouts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "channels_last": lambda t: t.to(memory_format=torch.channels_last),
        "transposed": lambda t: t.transpose(0, 3).contiguous().transpose(0, 3),
        "strided": lambda t: t.repeat_interleave(2, dim=3)[..., ::2],
        "sparse": lambda t: t.to_sparse(),
        "parameter": nn.Parameter,
        "graph": lambda t: t.clone().requires_grad_() * 1,
    }
    for batch in (1, 3):
        expected = reference(x[:batch])
        for make in layouts.values():
            other = make(x[:batch].clone())
            assert_same(summarize(other), expected, rel=1e-6)
            assert_same(summarize(as_rows(other)), expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64], ids=str)
def test_sparse_tensors_as_if_they_were_dense(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)) * 9
    x[1:3, ::2], x[3] = 0, 0
    x = x.to(dtype)
    layouts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "coo": lambda t: t.to_sparse(),
        "rows": lambda t: t.to_sparse(1),
        "uncoalesced": lambda t: torch.cat([t.to_sparse(), t.to_sparse()], 1),
        "csr": lambda t: t.to_sparse_csr(),
        "csc": lambda t: t.to_sparse_csc(),
        "bsr": lambda t: t.to_sparse_bsr((2, 3)),
        "batch of csr": lambda t: torch.stack([t, t]).to_sparse_csr(),
    }
    for make in layouts.values():
        assert_same(summarize(make(x)), reference(make(x).to_dense()), rel=1e-6)


@pytest.mark.parametrize("row", [[math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [math.inf, -math.inf, 1.0], [0.0], []])
def test_sparse_tensors_of_odd_rows(row: list[float]) -> None:
    x = torch.tensor([row, row])
    assert_same(summarize(x.to_sparse()), summarize(x), rel=1e-6)


def test_leaves_the_tensor_alone() -> None:
    x = torch.randn(2, 3, 4)
    before, version = x.clone(), x._version
    summarize(x), l1_norm(x), l2_norm(x), fraction_zero(x), channel_statistics(x, 1), first_values(x, 3)
    assert torch.equal(x, before)
    assert x._version == version


def test_in_inference_mode_and_autocast() -> None:
    x = torch.randn(2, 300, generator=torch.Generator().manual_seed(3))
    expected = summarize(x), l2_norm(x)
    with torch.inference_mode():
        assert (summarize(x), l2_norm(x)) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (summarize(x), l2_norm(x), summarize(x[:1])["std"]) == (*expected, summarize(x[:1])["std"])
        assert summarize(x[:1])["std"] == pytest.approx(x[:1].double().std(1).tolist(), rel=1e-6)


def test_a_batch_gives_what_its_datapoints_give() -> None:
    x = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(4)) * 3 + 1
    together, alone = summarize(x), [summarize(row[None]) for row in x]
    for name, values in together.items():
        assert values == pytest.approx([one[name][0] for one in alone], rel=1e-6)
    assert l2_norm(x) == pytest.approx([l2_norm(row[None])[0] for row in x], rel=1e-6)
    assert channel_statistics(x, 1)[1] == [pytest.approx(channel_statistics(row[None], 1)[1][0], rel=1e-6) for row in x]


def test_fractions_count_as_comparing_does() -> None:
    x = torch.tensor([[-1.0, 0.0, 1.0, math.nan], [0.0, -0.0, math.inf, -math.inf]])
    found = fractions(x, zero=("eq", 0.0), positive=("gt", 0.0), low=("le", -1.0), high=("ge", 1.0))
    assert found == {"zero": [0.25, 0.5], "positive": [0.25, 0.25], "low": [0.25, 0.25], "high": [0.25, 0.25]}
    assert fraction_zero(torch.tensor([[True, False, False, False]])) == [0.75]


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 4, 5), 1), ((2, 3, 4, 5, 6), 1), ((2, 7, 3), 2), ((2, 3, 7), 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_channel_statistics(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(5)) + 2).to(dtype)
    others = [d for d in range(1, len(shape)) if d != dim]
    means, stds = channel_statistics(x, dim)
    assert np.allclose(means, x.double().mean(others), rtol=1e-6)
    assert np.allclose(stds, x.double().std(others), rtol=1e-5)


def test_channels_of_one_position_have_no_spread() -> None:
    means, stds = channel_statistics(torch.ones(2, 3, 1), 1)
    assert means == [[1.0] * 3] * 2
    assert np.isnan(stds).all()


def test_first_values_are_each_datapoints_own() -> None:
    x = torch.arange(24).view(2, 3, 4)
    assert first_values(x.transpose(1, 2), 3) == [[0.0, 4.0, 8.0], [12.0, 16.0, 20.0]]
    assert first_values(x, 100)[1] == [float(v) for v in range(12, 24)]


class Scaled(nn.Module):
    """A container with a parameter of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("module", "shape", "dim"),
    [
        (nn.Linear(4, 4), (2, 4), None),
        (nn.Identity(), (4,), None),
        (nn.Conv2d(3, 4, 1), (2, 4, 5, 5), 1),
        (nn.Identity(), (2, 4, 5, 5, 5), 1),
        (nn.Linear(4, 4), (2, 9, 4), 2),
        (nn.Identity(), (2, 9, 4), 2),
        (nn.LayerNorm(4), (2, 9, 4), 2),
        (nn.Conv1d(3, 4, 1), (2, 4, 9), 1),
        (nn.ConvTranspose1d(3, 4, 1), (2, 4, 9), 1),
        (nn.BatchNorm1d(4), (2, 4, 9), 1),
        (nn.InstanceNorm1d(4), (2, 4, 9), 1),
        (nn.GroupNorm(2, 4), (2, 4, 9), 1),
        (nn.MaxPool1d(2), (2, 4, 9), 1),
        (nn.AdaptiveAvgPool1d(2), (2, 4, 9), 1),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(3, 4, 1), nn.ReLU()), (2, 4, 9), 1),
        (nn.Sequential(nn.Conv1d(3, 4, 1), nn.Linear(4, 4), nn.ReLU()), (2, 9, 4), 2),
        (nn.Sequential(nn.Conv1d(3, 4, 1), nn.Sequential(nn.MaxPool1d(2))), (2, 4, 9), 1),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 1)), nn.ReLU()), (2, 4, 9), 1),
        (Scaled(nn.Conv1d(3, 4, 1)), (2, 4, 9), 1),
        (Scaled(nn.Linear(4, 4)), (2, 9, 4), 2),
    ],
)
def test_channel_dim(module: nn.Module, shape: tuple[int, ...], dim: int | None) -> None:
    assert channel_dim(module, torch.zeros(shape)) == dim


def test_datapoint_shape() -> None:
    assert datapoint_shape(torch.zeros(16, 3, 2)) == [1, 3, 2]
    assert datapoint_shape(torch.zeros(1, 3)) == [1, 3]
    assert datapoint_shape(torch.zeros(0, 3)) == [0, 3]
