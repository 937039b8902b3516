"""Tensors to numbers: mean, standard deviation, extremes, counts of NaN and infinities, norms, fractions.

The one definition of each, for debuggers, reader, viewer, commands and reports. `reduce` stays on the tensor's device
and does not wait for it; `finish` turns what it returned, once on the host, into named numbers. `summarize` is both.

The first dimension is the batch: a tensor (B, ...) gives B numbers of each kind. A 0-d tensor is one datapoint; a
tensor without any datapoint gives NaN once, and counts of 0. NaN and Inf are not skipped: they show in every number
they reach, and are counted. Complex numbers count by their magnitude, quantised ones dequantised, a DTensor by its
local shard. Sums are accumulated in float64, on MPS devices in float32.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

_WIDE = frozenset((torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64))
_SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))

_CHUNK_ON_CPU = 1 << 15
"""Values converted to float64 at a time. Up to 2**15 torch computes on the calling thread alone, so that a thread that
reads statistics does not compete with the training loop for torch's thread pool."""
_CHUNK = 1 << 22
Per = Literal["datapoint", "tensor"]


def reduce(x: Tensor, *, per: Per = "datapoint") -> Tensor:
    """A table (B, 6) on the device of ``x`` for `finish`: one row per datapoint, or a single row for all values.

    >>> table = torch.cat([reduce(torch.ones(8, 3), per="tensor"), reduce(torch.zeros(5), per="tensor")])
    >>> finish(table.cpu())["mean"]             # one transfer for many tensors
    [1.0, 0.0]

    Does not synchronise, except for a sparse tensor. Whatever the size of a contiguous tensor, it takes less than 1 MB
    of memory on a CPU and about 100 MB on other devices.
    """
    x = _plain(x)
    if x.layout in _SPARSE and x.ndim and x.numel():
        return _reduce_sparse(x, per)
    rows = _rows(x, per)
    chunk = _CHUNK_ON_CPU if x.is_cpu else _CHUNK
    blocks = torch.split(rows, max(1, chunk // max(1, rows.shape[1])))
    return torch.cat([_reduce_rows(block, chunk) for block in blocks])


def finish(table: Tensor) -> dict[str, list[Any]]:
    """The named numbers of a table of `reduce`, or of several ones joined, each a list with one item per row.

    >>> finish(reduce(torch.tensor([[1.0, 3.0], [2.0, math.inf]])))["max"]
    [3.0, inf]

    ``std`` is unbiased, NaN for a single value. Safe on any thread.
    """
    mean, std, low, high, nan, inf = table.t().tolist()
    counts = {"nan": nan, "inf": inf, "non_finite": map(sum, zip(nan, inf, strict=True))}
    return {"mean": mean, "std": std, "min": low, "max": high, **{k: [*map(int, v)] for k, v in counts.items()}}


def summarize(x: Tensor) -> dict[str, list[Any]]:
    """Mean, standard deviation, minimum, maximum and number of non-finite values of each datapoint.

    >>> summarize(torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, math.inf]]))["mean"]
    [2.0, inf]

    One transfer to the host, whatever the batch. The five numbers that a page's ``summary`` stands for.
    """
    numbers = finish(reduce(x).cpu())
    return {name: numbers[name] for name in ("mean", "std", "min", "max", "non_finite")}


def _reduce_rows(rows: Tensor, chunk: int) -> Tensor:
    """Two passes: first the extremes, which show whether squares stay in range, then the sums."""
    count, n = rows.shape
    wide = _wide(rows)
    if not n:
        return torch.cat((rows.new_full((count, 4), math.nan, dtype=wide), rows.new_zeros(count, 2, dtype=wide)), 1)
    parts = torch.split(rows, max(1, chunk // count), dim=1)
    low, high, nan, inf = (rows.new_full((count,), start, dtype=wide) for start in (math.inf, -math.inf, 0, 0))
    for part in map(_real, parts):
        low, high = torch.minimum(low, part.amin(1)), torch.maximum(high, part.amax(1))  # NaN stays NaN
        marks = torch.empty_like(part)  # adding up floats is several times faster than adding up booleans
        nan = nan + torch.ne(part, part, out=marks).sum(1)
        inf = inf + torch.eq(part.abs(), math.inf, out=marks).sum(1)

    largest = torch.maximum(-low, high)
    scale = _scale(largest)
    shift = torch.where(largest.isfinite(), low / scale, 0.0)  # keeps a spread that is small beside the mean
    total = spread = torch.zeros_like(low)
    seen = 0
    for part in parts:
        m = part.shape[1]
        values = _real(part).to(wide) / scale[:, None] - shift[:, None]
        mean = values.sum(1) / m
        apart = mean - total / max(1, seen)
        # Chan, Golub and LeVeque: the squared deviations of two samples together
        spread = spread + (values - mean[:, None]).square().sum(1) + apart.square() * (seen * m / (seen + m))
        total = total + mean * m
        seen += m
    mean = (shift + total / n) * scale
    std = (spread / (n - 1)).sqrt() * scale if n > 1 else spread * math.nan
    return torch.stack((mean, std, low, high, nan, inf), 1)


def _scale(largest: Tensor) -> Tensor:
    """The divisor of values before they are squared: 1 unless the squares would leave the range of their type."""
    info = torch.finfo(largest.dtype)
    extreme = ((largest > info.max**0.25) & largest.isfinite()) | ((largest < info.tiny**0.25) & (largest > 0))
    return torch.where(extreme, largest, 1.0)


def _reduce_sparse(x: Tensor, per: Per) -> Tensor:
    """From the stored values, all others being zeros: the dense tensor may be too large for any memory."""
    coo: Tensor = x.to_sparse_coo().cpu().coalesce()  # type: ignore[no-untyped-call]
    values = _real(coo.values()).double()
    values = values.reshape(values.shape[0], math.prod(values.shape[1:]))
    row, count = (coo.indices()[0], x.shape[0]) if per == "datapoint" else (coo.indices()[0] * 0, 1)
    n = x.numel() // count

    def added(of_each: Tensor) -> Tensor:
        return values.new_zeros(count).index_add(0, row, of_each.double().sum(1))

    zeros = n - added(torch.ones_like(values))
    mean = added(values) / n
    squares = added((values - mean[row, None]).square()) + zeros * mean.square()
    low, high = (values.new_full((count,), end).where(zeros == 0, 0.0) for end in (math.inf, -math.inf))
    low = low.scatter_reduce(0, row, values.amin(1), "amin")
    high = high.scatter_reduce(0, row, values.amax(1), "amax")
    nan, inf = added(values.isnan()), added(values.isinf())
    return torch.stack((mean, (squares / (n - 1)).sqrt(), low, high, nan, inf), 1).to(x.device, _wide(x))


def l1_norm(x: Tensor) -> list[float]:
    """The mean magnitude of each datapoint: the 1-norm over the number of values.

    >>> l1_norm(torch.tensor([[-1.0, 3.0]]))
    [2.0]
    """
    rows = as_rows(x)
    return list((rows.abs().sum(1, dtype=_wide(rows)) / rows.shape[1]).tolist())


def l2_norm(x: Tensor) -> list[float]:
    """The Euclidean norm of each datapoint, also where its square is out of range.

    >>> l2_norm(torch.tensor([[3.0, 4.0]]))
    [5.0]
    """
    rows = as_rows(x)
    if not rows.shape[1]:
        return [math.nan] * rows.shape[0]
    scale = _scale(rows.abs().amax(1))
    norms = torch.linalg.vector_norm(rows / scale[:, None], dim=1, dtype=_wide(rows)) * scale
    return list(norms.tolist())


def fractions(x: Tensor, **conditions: tuple[Literal["eq", "gt", "le", "ge"], float]) -> dict[str, list[float]]:
    """The share of values in each datapoint that satisfy each named comparison; NaN satisfies none.

    >>> fractions(torch.tensor([[-1.0, 0.0, 2.0, 3.0]]), high=("ge", 2.0), positive=("gt", 0.0))
    {'high': [0.5], 'positive': [0.5]}
    """
    rows = as_rows(x)
    counts = torch.stack([getattr(torch, op)(rows, bound).sum(1) for op, bound in conditions.values()])
    return dict(zip(conditions, (counts.cpu().double() / rows.shape[1]).tolist(), strict=True))


def channel_statistics(x: Tensor, dim: int) -> tuple[list[list[float]], list[list[float]]]:
    """The mean and the standard deviation of every channel of each datapoint, ``dim`` being the channels.

    >>> channel_statistics(torch.tensor([[[1.0, 3.0], [5.0, 5.0]]]), dim=1)
    ([[2.0, 5.0]], [[1.4142135623730951, 0.0]])
    """
    channels = _plain(x).movedim(dim, 1)
    batch, count, *rest = channels.shape
    table = reduce(channels.reshape(batch * count, math.prod(rest))).view(batch, count, -1)
    means, stds = table[..., :2].unbind(-1)
    return means.tolist(), stds.tolist()


def first_values(x: Tensor, most: int) -> list[list[float]]:
    """The first values of each datapoint, in the tensor's order.

    >>> first_values(torch.arange(6).view(2, 3), most=2)
    [[0.0, 1.0], [3.0, 4.0]]
    """
    rows = x.reshape(x.shape[0], x.numel() // x.shape[0]) if x.ndim and x.shape[0] else x.reshape(1, -1)
    return list(_real(_plain(rows[:, :most])).tolist())


def datapoint_shape(x: Tensor) -> list[int]:
    """The shape of one datapoint as a batch of one.

    >>> datapoint_shape(torch.zeros(16, 64, 32, 32))
    [1, 64, 32, 32]
    """
    shape = list(x.shape)
    return [min(1, shape[0]), *shape[1:]] if shape else shape


def as_rows(x: Tensor) -> Tensor:
    """(B, n), real and floating: a row for each datapoint, in whatever order its values lie in memory.

    >>> as_rows(torch.zeros(16, 64, 32, 32, dtype=torch.bfloat16)).shape
    torch.Size([16, 65536])

    The functions here, called on the result, do not convert it again.
    """
    return _real(_rows(_plain(x), "datapoint"))


_CHANNELS_FIRST = (
    nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.GroupNorm, nn.Dropout1d,
    nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
)  # fmt: skip


def channel_dim(module: nn.Module, x: Tensor) -> int | None:
    """Which dimension of a layer's output holds the channels; None for an output (B, features).

    >>> channel_dim(nn.Conv2d(3, 8, 1), torch.zeros(1, 8, 4, 4))
    1
    >>> channel_dim(nn.LayerNorm(8), torch.zeros(1, 5, 8))  # tokens
    2

    A 3-D output is ambiguous: (B, N, C) unless the module, or the last one inside it that decides, works on (B, C, L).
    """
    if x.ndim < 3:
        return None
    if x.ndim > 3:
        return 1
    for inner in (module, *reversed(list(module.modules()))):
        if isinstance(inner, _CHANNELS_FIRST):
            return 1
        parameters = any(p is not None for p in inner._parameters.values())
        if parameters and inner is not module and not isinstance(inner, ParametrizationList):
            break
    return 2


def _plain(x: Tensor) -> Tensor:
    """Detached, no subclass, not quantised."""
    x = x.detach()
    if type(x) is not Tensor:
        local = getattr(x, "to_local", None)  # a DTensor: this rank's shard, without asking the others
        x = local() if local else x.as_subclass(Tensor)
    return x.dequantize() if x.is_quantized else x


def _rows(x: Tensor, per: Per) -> Tensor:
    """(B, n) or (1, n); a view where the memory allows it, also of channels_last and transposed tensors."""
    if x.layout is not torch.strided:
        x = x.to_dense()
    batch = x.shape[:1] if per == "datapoint" and x.ndim and x.shape[0] else ()
    rest = sorted(range(len(batch), x.ndim), key=x.stride, reverse=True)
    x = x.permute((*range(len(batch)), *rest))
    return x.reshape(*batch or (1,), math.prod(x.shape[len(batch) :]))


def _real(x: Tensor) -> Tensor:
    """As float32, or float64 where that would lose digits; complex numbers by their magnitude."""
    if x.is_complex():
        x = (x if x.dtype is torch.complex128 else x.to(torch.complex64)).abs()
    if x.dtype not in _WIDE:
        return x.float()
    return (x.cpu() if x.device.type == "mps" else x).double()


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
