"""One definition of each number: everything that computes, stores or shows them agrees with numpy in float64."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.viewer import quiet, runs
from tests.viewer.api import Viewer
from torch import nn

from endoscope import SequentialDebugger, load_debug_outputs
from endoscope.cli import main
from endoscope.debuggers import ActivationStatsDebugger, FeatureMapDebugger
from endoscope.statistics import (
    as_rows,
    channel_dim,
    channel_statistics,
    datapoint_shape,
    finish,
    first_values,
    fractions,
    l1_norm,
    l2_norm,
    reduce,
    summarize,
)

NAN, INF = math.nan, math.inf
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64,
]  # fmt: skip
COMPLEX = [torch.complex64, torch.complex128]


# ---------------------------------------------------------------- the independent computation
def by_numpy(values: Any) -> dict[str, float]:
    """Of all values together, in float64."""
    x = np.asarray(values, np.float64).ravel()
    nan, inf = int(np.isnan(x).sum()), int(np.isinf(x).sum())
    counts = {"nan": nan, "inf": inf, "non_finite": nan + inf}
    if not x.size:
        return {"mean": NAN, "std": NAN, "min": NAN, "max": NAN, **counts}
    with np.errstate(all="ignore"):
        largest = np.abs(x).max()
        # Squares of 1e200 leave the range of float64.
        scale = largest if 0 < largest < INF and not 1e-100 < largest < 1e100 else 1.0
        first = x[0] / scale if np.isfinite(x).all() else 0.0
        apart = x / scale - first  # numpy, too, loses digits where the mean is far larger than the spread
        mean = float((first + apart.mean()) * scale)
        std = float(apart.std(ddof=1) * scale) if x.size > 1 else NAN
    return {"mean": mean, "std": std, "min": float(x.min()), "max": float(x.max()), **counts}


def by_row(x: torch.Tensor) -> dict[str, list[float]]:
    """What `finish` gives for a batch, by numpy."""
    rows = x.reshape(x.shape[0], -1) if x.ndim and x.shape[0] else x.reshape(1, -1)
    values = (rows.to(torch.complex128).abs() if x.is_complex() else rows.double()).numpy()
    each = [by_numpy(row) for row in values]
    return {name: [one[name] for one in each] for name in each[0]}


def assert_same(found: dict[str, Any], expected: dict[str, Any], rel: float = 1e-9) -> None:
    """``found`` may have fewer of the numbers. A mean near 0 is compared beside the size of the values."""
    assert found
    ends = np.abs(np.hstack([expected["min"], expected["max"]]))
    size = max((end for end in ends if math.isfinite(end)), default=0.0)
    for name, value in found.items():
        slack = rel * size if name == "mean" else 0.0
        assert value == pytest.approx(expected[name], rel=rel, abs=slack, nan_ok=True), name


# ---------------------------------------------------------------- all users
@dataclass(frozen=True)
class Case:
    """A layer's output for one datapoint, and the values that count."""

    x: torch.Tensor
    values: Any
    rel: float = 1e-9


def spread_around(mean: float, std: float, dtype: torch.dtype = torch.float32, n: int = 70_000) -> Case:
    x = (torch.randn(1, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * std + mean).to(dtype)
    return Case(x, x.double().numpy())


def exact(values: Any, dtype: torch.dtype, **about: Any) -> Case:
    x = torch.tensor(values, dtype=dtype)
    return Case(x, (x.abs() if x.is_complex() else x.double()).numpy(), **about)


def quantised() -> Case:
    return Case(quiet.quantized(1, 6), np.ones(6), rel=1e-6)


def sparse() -> Case:
    dense = torch.tensor([[0.0, 3.0, 0.0, -1.0, 0.0]])
    return Case(dense.to_sparse(), dense.double().numpy())


CASES: dict[str, Case] = {
    "nan": exact([[1.0, NAN, 3.0]], torch.float32),
    "inf": exact([[1.0, INF, 3.0]], torch.float32),
    "minus inf": exact([[1.0, -INF, 3.0]], torch.bfloat16),
    "both infinities": exact([[INF, 2.0, -INF]], torch.float32),
    "nan and inf": exact([[NAN, INF, 0.5, NAN]], torch.float64),
    "bool": exact([[True, False, True, True]], torch.bool),
    "uint8": exact([[0, 255, 7]], torch.uint8),
    "int64": exact([[2**62 + 1, -(2**61) - 1, 3]], torch.int64),
    "bfloat16": exact([[1.0, 2.5, -3.0]], torch.bfloat16),
    "float16": exact([[60000.0, 60000.0, -3.0]], torch.float16),
    "complex64": exact([[3 + 4j, 0j, 1j]], torch.complex64, rel=1e-6),
    "quantised": quantised(),
    "sparse": sparse(),
    "empty": exact([[]], torch.float32),
    "0-d": exact(2.5, torch.float32),
    "one element": exact([[-2.5]], torch.float32),
    "equal values": exact([[0.25] * 7], torch.float64),
    "mean 1000, std 0.1": spread_around(1000, 0.1),
    "mean 1e4, std 1": spread_around(1e4, 1),
    "mean 1e6, std 10": spread_around(1e6, 10),
    "mean 1e12, std 1": spread_around(1e12, 1, torch.float64),
    "1e-30": spread_around(0, 1e-30),
    "1e30": spread_around(1e30, 1e28),
    "1e200": spread_around(1e200, 1e200, torch.float64, n=40_000),
    "1e-200": spread_around(0, 1e-200, torch.float64, n=100),
}
CAPTURED = [*CASES]


@dataclass(frozen=True)
class Users:
    """What each of them says of every case, by its name."""

    debuggers: dict[str, dict[str, Any]]
    viewer: dict[str, dict[str, Any]]
    command: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    folder = tmp_path_factory.mktemp("runs")
    runs.write_about(folder / "run")
    pages = folder / "run" / "epoch_0" / "debugger"
    model = nn.Sequential(nn.Identity())
    config = [
        {"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "0"}}},
        {"name": "stats", "debugger_config": {"class": ActivationStatsDebugger, "args": {"layer_name": "0"}}},
    ]
    with SequentialDebugger(config, model, output_dir=pages) as debugger, torch.no_grad():
        debugger.enabled = True
        for idx, name in enumerate(CAPTURED):
            model(CASES[name].x)
            debugger({"meta_info": {"idx": idx}})
    read, viewer = load_debug_outputs(pages), Viewer(folder)

    def shown(idx: int) -> dict[str, Any]:
        answer = CliRunner().invoke(main, ["pages", "show", str(pages), str(idx), "--json"])
        return json.loads(answer.stdout)["debuggers"]["maps"]["items"]["feature_map"]  # type: ignore[no-any-return]

    return Users(
        debuggers={name: read[idx] for idx, name in enumerate(CAPTURED)},
        viewer={
            name: viewer.items(epoch=0, dp=idx)[("maps", "feature_map")]["stats"] for idx, name in enumerate(CAPTURED)
        },
        command={name: shown(idx) for idx, name in enumerate(CAPTURED)},
    )


def numbers(shown: dict[str, Any], *, without: tuple[str, ...] = ()) -> dict[str, float]:
    """The numbers among what is shown: JSON has text for what is not finite, and null for what does not exist."""
    names = [n for n in ("mean", "std", "min", "max", "nan", "inf", "non_finite") if n in shown and n not in without]
    return {name: NAN if shown[name] is None else float(shown[name]) for name in names}


@pytest.mark.parametrize("name", CASES)
def test_all_users_agree_with_numpy(users: Users, name: str) -> None:
    case = CASES[name]
    expected = by_numpy(case.values)
    assert_same({k: v[0] for k, v in summarize(case.x).items()}, expected, case.rel)
    for per in ("datapoint", "tensor"):
        assert_same({k: v[0] for k, v in finish(reduce(case.x, per=per)).items()}, expected, case.rel)
    captured = users.debuggers[name]
    assert_same(numbers(captured["maps"]["stats"]), expected, case.rel)
    if case.x.layout is torch.strided:
        assert_same(numbers(captured["stats"]["activation_stats"]), expected, case.rel)
    assert_same(numbers(users.viewer[name]), expected, case.rel)
    # The command line shows a sparse tensor by its stored values, and says so.
    stored = by_numpy([3.0, -1.0]) if name == "sparse" else expected
    assert_same(numbers(users.command[name]), stored, case.rel)
    assert users.command[name]["over"] == {
        "sparse": "stored values", "complex64": "magnitudes", "quantised": "dequantized values",
    }.get(name, "values")  # fmt: skip


def test_what_is_shown_of_integers_is_exact(users: Users) -> None:
    for shown in (users.command["int64"], users.viewer["uint8"], users.viewer["bool"]):
        assert all(type(shown[end]) is int for end in ("min", "max"))
    assert (users.command["int64"]["min"], users.command["int64"]["max"]) == (-(2**61) - 1, 2**62 + 1)


def test_the_difference_of_moments_would_be_wrong() -> None:
    x = CASES["mean 1000, std 0.1"].x
    naive = (x.square().mean() - x.mean().square()).clamp_min(0).sqrt()
    assert naive.item() != pytest.approx(x.double().std().item(), rel=0.1)


# ---------------------------------------------------------------- reduce and finish
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + COMPLEX, ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 7, 3), (4, 5, 7, 3), (3, 1000), (6,), (2, 40_000), (4000, 20)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 20 + 40).abs()
    x = torch.complex(x, -x).to(dtype) if dtype in COMPLEX else (x > 40 if dtype is torch.bool else x.to(dtype))
    assert_same(finish(reduce(x)), by_row(x), rel=1e-6 if dtype in COMPLEX else 1e-9)
    together = {k: [v] for k, v in by_numpy(x.abs() if x.is_complex() else x.double()).items()}
    assert_same(finish(reduce(x, per="tensor")), together, rel=1e-6 if dtype in COMPLEX else 1e-9)


@settings(deadline=None, max_examples=200)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=6),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_any_array(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    found, expected = finish(reduce(x)), by_row(x)
    slack = [1e-12 * (abs(high) + abs(low)) for low, high in zip(expected["min"], expected["max"], strict=True)]
    for name in ("min", "max", "nan", "inf", "non_finite"):
        assert found[name] == pytest.approx(expected[name], rel=0, nan_ok=True)
    for name in ("mean", "std"):
        for value, right, near in zip(found[name], expected[name], slack, strict=True):
            near = near if math.isfinite(near) else 0.0
            assert value == pytest.approx(right, rel=1e-9, abs=near, nan_ok=True)


def test_many_tensors_are_finished_after_one_transfer() -> None:
    tensors = [CASES[name].x for name in ("nan", "uint8", "sparse", "empty", "0-d", "complex64")]
    table = torch.cat([reduce(t, per="tensor") for t in tensors])
    alone = [finish(reduce(t, per="tensor")) for t in tensors]
    assert_same(finish(table), {k: [one[k][0] for one in alone] for k in alone[0]}, rel=0)


def test_reduce_does_not_read_a_value_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a value was read")

    x = torch.ones(3, 70_000, requires_grad=True)
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "nonzero"):
            patch.setattr(torch.Tensor, name, refuse)
        table = reduce(x)
        with pytest.raises(AssertionError):
            finish(table)  # the twin
    assert not table.requires_grad


def test_numbers_are_plain_python() -> None:
    for name, values in finish(reduce(torch.randn(2, 3))).items():
        assert all(type(v) is (int if name in ("nan", "inf", "non_finite") else float) for v in values)


def test_equal_values_and_the_ends_of_the_range() -> None:
    for value, dtype in ((3e38, torch.float32), (0.1, torch.float32), (0.1, torch.float64), (-1e-300, torch.float64)):
        x = torch.full((2, 100), value, dtype=dtype)
        found = summarize(x)
        assert (found["mean"], found["std"]) == ([x[0, 0].item()] * 2, [0.0] * 2)
    found = summarize(torch.tensor([[1e308, -1e308, 0.0], [1.7e308, 1.7e308, 1.7e308]], dtype=torch.float64))
    assert (found["mean"], found["std"]) == ([0.0, 1.7e308], [pytest.approx(1e308), 0.0])
    found = summarize(torch.tensor([[1e-320, 3e-320]], dtype=torch.float64))
    assert (found["mean"][0], found["std"][0]) == (pytest.approx(2e-320), pytest.approx(2**0.5 * 1e-320, rel=1e-3))


@pytest.mark.parametrize(("shape", "rows"), [((0,), 1), ((0, 4), 1), ((3, 0), 3), ((2, 4, 0, 5), 2)], ids=str)
def test_empty_tensors(shape: tuple[int, ...], rows: int) -> None:
    x = torch.zeros(shape)
    found = summarize(x)
    assert found.pop("non_finite") == [0] * rows
    others = [*found.values(), l1_norm(x), l2_norm(x), fractions(x, zero=("eq", 0.0))["zero"]]
    assert all(len(v) == rows and all(map(math.isnan, v)) for v in others)
    assert first_values(x, 5) == [[]] * rows


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
        expected = by_row(x[:batch])
        for make in layouts.values():
            other = make(x[:batch].clone())
            assert_same(summarize(other), expected)
            assert_same(summarize(as_rows(other)), expected)


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
        assert_same(summarize(make(x)), by_row(make(x).to_dense()), rel=1e-6)


@pytest.mark.parametrize("row", [[math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [math.inf, -math.inf, 1.0], [0.0], []])
def test_sparse_tensors_of_odd_rows(row: list[float]) -> None:
    x = torch.tensor([row, row])
    assert_same(summarize(x.to_sparse()), summarize(x), rel=1e-6)


def test_a_sparse_tensor_that_no_memory_could_hold() -> None:
    at = torch.tensor([[0, 1], [5, 7]])
    x = quiet.sparse(at, torch.tensor([6.0, -2.0]), (2, 10**13))
    assert summarize(x)["mean"] == pytest.approx([6e-13, -2e-13])
    assert finish(reduce(x, per="tensor"))["std"] == pytest.approx([(40 / 2e13) ** 0.5])


def test_leaves_the_tensor_alone() -> None:
    x = torch.randn(2, 3, 4)
    before, version = x.clone(), x._version
    summarize(x), l1_norm(x), l2_norm(x), fractions(x, zero=("eq", 0.0)), channel_statistics(x, 1), first_values(x, 3)
    assert torch.equal(x, before)
    assert x._version == version


def test_in_inference_mode_and_autocast() -> None:
    x = torch.randn(2, 300, generator=torch.Generator().manual_seed(3))
    expected = summarize(x), l2_norm(x)
    with torch.inference_mode():
        assert (summarize(x), l2_norm(x)) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (summarize(x), l2_norm(x)) == expected


@pytest.mark.parametrize("rows", [[[1.0, 2.0, 3.0], [NAN, INF, -INF]], [[3e38, 3e38, -1.0], [1.0, 2.0, 3.0]]])
def test_no_warning(rows: list[list[float]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summarize(torch.tensor(rows))


# ---------------------------------------------------------------- other numbers
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-20, 1.0, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("shape", [(1, 5), (2, 5), (2, 70_000)], ids=str)
def test_norms_as_in_float64(scale: float, shape: tuple[int, int]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * scale - scale / 2
    assert l2_norm(x) == pytest.approx(x.double().norm(dim=1).tolist(), rel=1e-6)
    assert l1_norm(x) == pytest.approx(x.double().abs().mean(1).tolist(), rel=1e-6)


def test_norms_of_float64_and_of_what_is_not_finite() -> None:
    x = torch.tensor([[3e200, 4e200], [NAN, INF], [INF, 1.0], [INF, -INF]], dtype=torch.float64)
    assert l2_norm(x) == pytest.approx([5e200, NAN, INF, INF], nan_ok=True)
    assert l1_norm(x) == pytest.approx([3.5e200, NAN, INF, INF], nan_ok=True)


def test_fractions_count_as_comparing_does() -> None:
    x = torch.tensor([[-1.0, 0.0, 1.0, NAN], [0.0, -0.0, INF, -INF]])
    found = fractions(x, zero=("eq", 0.0), positive=("gt", 0.0), low=("le", -1.0), high=("ge", 1.0))
    assert found == {"zero": [0.25, 0.5], "positive": [0.25, 0.25], "low": [0.25, 0.25], "high": [0.25, 0.25]}
    assert fractions(torch.tensor([[True, False, False, False]]), zero=("eq", 0.0)) == {"zero": [0.75]}


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 4, 5), 1), ((2, 3, 4, 5, 6), 1), ((2, 7, 3), 2), ((2, 3, 7), 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_channel_statistics(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(5)) + 1000).to(dtype)
    others = [d for d in range(1, len(shape)) if d != dim]
    means, stds = channel_statistics(x, dim)
    assert np.allclose(means, x.double().mean(others), rtol=1e-6)
    assert np.allclose(stds, x.double().std(others), rtol=1e-6)


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
