"""Tensors to numbers: a few per datapoint, made of the cheapest reductions, with one host transfer.

Owns what is computed from a tensor and how exactly; not what is kept of it, nor when. Runs in a hook, or where a record
is read.

The first dimension is the batch: a tensor (B, ...) gives B numbers of each kind, those that each datapoint would have
given by itself. A 0-d tensor is one datapoint; a tensor without any datapoint gives one NaN and a count of 0.
Computed in float32, or float64 for float64 and integers of 32 bits and more; complex numbers by their magnitude.
`summarize` computes in float64 for a sparse tensor, from the values it has.
NaN and Inf are not skipped: they show in every number they reach, and ``non_finite`` counts them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

_WIDE = frozenset((torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64))

_READ_BY_NUMPY = frozenset((
    torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16,
    torch.int32, torch.uint32, torch.int64, torch.uint64,
))  # fmt: skip

_IN_ONE_GO = 1 << 12
"""How many float32 squares may be added up one after the other: beyond it the sum loses accuracy."""

_TINY = {d: 1e4 * torch.finfo(d).tiny ** 0.5 for d in (torch.float32, torch.float64)}
"""Squares leave the range of their type long before the values do: below this, and where something overflowed, numbers
are computed again, scaled."""


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

    Done once for several of the functions below, it saves them converting the tensor each for itself.
    """
    x = _real(x)
    shape = x.shape
    if not shape or not shape[0]:
        return x.reshape(1, -1)
    if not x.is_contiguous():  # channels_last, transposed: a view instead of a copy
        x = x.permute(0, *sorted(range(1, x.ndim), key=x.stride, reverse=True))
    return x.reshape(shape[0], math.prod(shape[1:]))


def summarize(x: Tensor) -> dict[str, list[float]]:
    """Mean, standard deviation (unbiased), minimum, maximum and number of non-finite values, one for each datapoint.

    >>> summarize(torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, math.inf]]))["mean"]
    [2.0, inf]

    One host transfer, whatever the batch; about 50 us for one map of 64 x 32 x 32 on a CPU.
    """
    if x.layout in _SPARSE and x.ndim and math.prod(x.shape):
        return _of_sparse(x)
    host = _on_host(x)
    if host is not None and host.shape[1]:
        return _on_this_thread(host)
    rows = as_rows(x)
    count, n = rows.shape
    if n == 0:
        nan = [math.nan] * count
        return {"mean": nan, "std": nan[:], "min": nan[:], "max": nan[:], "non_finite": [0] * count}
    return _many_rows(rows, n)


def l1_norm(x: Tensor) -> list[float]:
    """The mean magnitude of each datapoint: the 1-norm over the number of values.

    >>> l1_norm(torch.tensor([[-1.0, 3.0]]))
    [2.0]
    """
    rows = as_rows(x)
    n = rows.shape[1]
    if n == 0:
        return [math.nan] * rows.shape[0]
    means: list[float] = [total / n for total in rows.abs().sum(1).tolist()]
    if not all(map(math.isfinite, means)):  # the sum may have overflowed
        means = (rows.cpu().double().abs() / n).sum(1).tolist()
    return means


def l2_norm(x: Tensor) -> list[float]:
    """The Euclidean norm of each datapoint, also where its square is out of range.

    >>> l2_norm(torch.tensor([[3.0, 4.0]]))
    [5.0]
    """
    rows = as_rows(x)
    if rows.shape[1] == 0:
        return [math.nan] * rows.shape[0]
    norms: list[float] = _norm(rows).tolist()
    tiny = _TINY[rows.dtype]
    for j, norm in enumerate(norms):
        if norm < tiny or norm == math.inf:
            scale = rows[j].abs().amax().item()
            if 0 < scale < math.inf:
                norms[j] = scale * torch.linalg.vector_norm(rows[j].cpu().double() / scale).item()
    return norms


def fraction_zero(x: Tensor) -> list[float]:
    """The share of exact zeros in each datapoint.

    >>> fraction_zero(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    [0.5, 0.0]
    """
    return fractions(x, zero=("eq", 0.0))["zero"]


def fractions(x: Tensor, **conditions: tuple[Literal["eq", "gt", "le", "ge"], float]) -> dict[str, list[float]]:
    """The share of values in each datapoint that satisfy each named comparison; NaN satisfies none.

    >>> fractions(torch.tensor([[-1.0, 0.0, 2.0, 3.0]]), high=("ge", 2.0), positive=("gt", 0.0))
    {'high': [0.5], 'positive': [0.5]}
    """
    rows = as_rows(x)
    count, n = rows.shape
    if n == 0:
        return {name: [math.nan] * count for name in conditions}
    # Comparing into floats and adding those up takes half the time of counting booleans.
    marks = torch.empty_like(rows)
    totals = torch.stack([getattr(torch, op)(rows, bound, out=marks).sum(1) for op, bound in conditions.values()])
    return dict(zip(conditions, (totals.cpu().double() / n).tolist(), strict=True))


def channel_statistics(x: Tensor, dim: int) -> tuple[list[list[float]], list[list[float]]]:
    """The mean and the standard deviation of every channel of each datapoint, ``dim`` being the channels.

    >>> channel_statistics(torch.tensor([[[1.0, 3.0], [5.0, 5.0]]]), dim=1)
    ([[2.0, 5.0]], [[1.4142135623730951, 0.0]])
    """
    channels = _real(x).movedim(dim, 1)
    channels = channels.reshape(*channels.shape[:2], math.prod(channels.shape[2:]))
    n = channels.shape[2]
    means, stds = [], []
    for one in channels:  # one at a time: in float64 nothing has to be computed twice, and a batch of it would be large
        values = (one.cpu() if one.device.type == "mps" else one).double()
        mean = values.sum(1, keepdim=True) / n
        norm = torch.linalg.vector_norm(values - mean, dim=1)
        means.append(mean.view(-1).tolist())
        stds.append((norm / math.sqrt(n - 1) if n > 1 else norm * math.nan).tolist())
    return means, stds


def first_values(x: Tensor, most: int) -> list[list[float]]:
    """The first values of each datapoint, in the tensor's order.

    >>> first_values(torch.arange(6).view(2, 3), most=2)
    [[0.0, 1.0], [3.0, 4.0]]
    """
    rows = x.reshape(x.shape[0], x.numel() // x.shape[0]) if x.ndim and x.shape[0] else x.reshape(1, -1)
    values: list[list[float]] = _real(rows[:, :most]).tolist()
    return values


_CHANNELS_FIRST = (
    nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.GroupNorm, nn.Dropout1d,
    nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
)  # fmt: skip


def channel_dim(module: nn.Module, x: Tensor) -> int | None:
    """Which dimension of a layer's output holds the channels; None where there is none besides the features.

    >>> channel_dim(nn.Conv2d(3, 8, 1), torch.zeros(1, 8, 4, 4))
    1
    >>> channel_dim(nn.LayerNorm(8), torch.zeros(1, 5, 8))  # tokens
    2

    A 3-D output is ambiguous: (B, N, C) unless the module, or the last one inside it with a say, works on (B, C, L).
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


def _real(x: Tensor) -> Tensor:
    """Plain, dense, real floating-point numbers."""
    x = x.detach()
    if x.dtype is torch.float32 and type(x) is Tensor and x.layout is torch.strided:
        return x
    if type(x) is not Tensor:
        local = getattr(x, "to_local", None)  # a DTensor: this rank's shard, without talking to the others
        x = local() if local else x.as_subclass(Tensor)
    if x.is_quantized:
        x = x.dequantize()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_complex():
        x = (x if x.dtype is torch.complex128 else x.to(torch.complex64)).abs()
    if x.dtype not in _WIDE:
        return x.float()
    return (x.cpu() if x.device.type == "mps" else x).double()  # Apple's devices have no float64


def _on_host(x: Tensor) -> np.ndarray[Any, Any] | None:
    """`as_rows` for numpy, where the bytes are at hand; None where only torch can read them.

    Numpy computes on the calling thread alone. Torch would start threads of its own for each thread that reads, as many
    as for the loop's, and they would wait for each other on the same cores.
    """
    dtype = x.dtype
    if type(x) is not Tensor or (dtype not in _READ_BY_NUMPY and dtype is not torch.bfloat16):
        return None
    try:
        if dtype is torch.bfloat16:  # the upper half of a float32
            values = (x.detach().view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = x.detach().numpy()
    except (TypeError, RuntimeError):  # on a device, sparse, a view that is not resolved
        return None
    if not values.flags.c_contiguous:
        return None
    if dtype is not torch.float32 and dtype is not torch.bfloat16:
        values = values.astype(np.float64 if dtype in _WIDE else np.float32, copy=False)
    return values.reshape(x.shape[0], -1) if x.ndim and values.size else values.reshape(1, -1)


def _on_this_thread(rows: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """By numpy, in few calls and little Python: each gives the interpreter lock away, and inside a running model both
    find their caches taken."""
    n = rows.shape[1]
    lows, highs = np.minimum.reduce(rows, axis=1).tolist(), np.maximum.reduce(rows, axis=1).tolist()
    most = _SQUARED[rows.dtype]
    if all(-most < low for low in lows) and all(high < most for high in highs):
        totals, squares = _sums(rows, n)
    else:
        with np.errstate(all="ignore"):
            totals, squares = _sums(rows, n)
    means, stds, bad, again = [], [], [], []
    for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if math.isfinite(low) and math.isfinite(high):
            mean, std = _mean_and_std(rows[k], n, totals[k], squares[k], low, high)
            bad.append(0)
            if std is None:
                again.append(k)
        else:
            mean, std = low + high, math.nan  # the infinity, or NaN where both are there
            bad.append(n - int(np.count_nonzero(np.isfinite(rows[k]))))
        means.append(mean)
        stds.append(std)
    if again:
        for k, mean, std in zip(again, *_scaled(rows[again], n), strict=True):
            means[k], stds[k] = float(mean), float(std)
    return {"mean": means, "std": stds, "min": lows, "max": highs, "non_finite": bad}


def _mean_and_std(
    row: np.ndarray[Any, Any], n: int, total: float, squares: float, low: float, high: float
) -> tuple[float, float | None]:
    """Of finite values; a spread of None where `_scaled` must compute both. A second pass only if the mean outweighs
    the spread."""
    if low == high:
        return low, 0.0 if n > 1 else math.nan
    mean = total / n
    if total * mean > 0.9 * squares:  # the difference would lose more than three bits
        rounded = row.dtype.type(mean)
        with np.errstate(all="ignore"):
            (total,), (squares,) = _sums((row - rounded)[None], n)  # what the rounding left over corrects both
        mean = float(rounded) + total / n
    variance = (squares - total * total / n) / (n - 1)
    std = math.sqrt(variance) if not variance < 0 else 0.0
    known = math.isfinite(mean) and math.isfinite(std) and not total * total > 0.9 * n * squares
    return mean, std if known and high - low >= _NARROW[row.dtype] else None


_NARROW = {np.dtype(np.float32): _TINY[torch.float32], np.dtype(np.float64): _TINY[torch.float64]}
_SQUARED = {np.dtype(np.float32): 1e17, np.dtype(np.float64): 1e150}
"""Below these, `_IN_ONE_GO` squares add up to a finite number."""
_ONES = {d: np.ones(_IN_ONE_GO, d) for d in (np.dtype(np.float32), np.dtype(np.float64))}


def _sums(rows: np.ndarray[Any, Any], n: int) -> tuple[list[float], list[float]]:
    """The sums of the rows and of their squares. As dot products they are the fastest that numpy has, and up to
    `_IN_ONE_GO` values BLAS uses no threads for them."""
    ones = _ONES[rows.dtype]
    if n <= _IN_ONE_GO:
        return np.vecdot(rows, ones[:n]).tolist(), np.vecdot(rows, rows).tolist()
    even = n - n % _IN_ONE_GO
    pieces = rows[:, :even].reshape(len(rows), -1, _IN_ONE_GO)
    total = np.vecdot(pieces, ones).sum(1, dtype=np.float64)
    squares = np.vecdot(pieces, pieces).sum(1, dtype=np.float64)
    if even < n:
        rest = rows[:, even:]
        total += np.vecdot(rest, ones[: n - even])
        squares += np.vecdot(rest, rest)
    return total.tolist(), squares.tolist()


def _many_rows(rows: Tensor, n: int) -> dict[str, list[float]]:
    """On any device, with one transfer."""
    total = rows.sum(1)
    centred = rows - (total / n)[:, None]
    parts = torch.stack((total, centred.sum(1), _norm(centred), rows.amin(1), rows.amax(1)))
    with np.errstate(all="ignore"):
        total, rest, norm, low, high = parts.cpu().double().numpy()
        mean = np.where(np.isfinite(rest), total + rest, total) / n
        squares, doubt = norm * norm, rest * rest / n
        std = np.sqrt(np.maximum(squares - doubt, 0) / max(n - 1, 1))
        known = np.isfinite(mean) & np.isfinite(std) & ~(doubt > 0.9 * squares)
        finite = np.isfinite(low) & np.isfinite(high)
        equal = finite & (low == high)
        mean[equal], std[equal] = low[equal], 0.0 if n > 1 else math.nan
        again = finite & ~equal & (~known | (high - low < _TINY[rows.dtype]))
    if again.any():
        at = again.nonzero()[0]
        mean[at], std[at] = _scaled(rows[torch.from_numpy(at).to(rows.device)].cpu().numpy(), n)
    bad = [0] * len(mean) if finite.all() else (n - torch.isfinite(rows).sum(1)).tolist()
    return {"mean": mean.tolist(), "std": std.tolist(), "min": low.tolist(), "max": high.tolist(), "non_finite": bad}


_SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


def _of_sparse(x: Tensor) -> dict[str, list[float]]:
    """From the values that are there, the others being zeros: no memory may hold all that its shape says."""
    coo: Tensor = x.to_sparse_coo()  # type: ignore[no-untyped-call]
    coo = coo.detach().coalesce().cpu()
    count, n = x.shape[0], math.prod(x.shape[1:])
    row, values = coo.indices()[0], _real(coo.values()).double()
    values = values.reshape(len(values), math.prod(values.shape[1:]))

    def added(of_each: Tensor) -> Tensor:
        return torch.zeros(count, dtype=of_each.dtype).index_add(0, row, of_each.sum(1))

    zeros = n - added(torch.ones_like(values))
    mean = added(values) / n
    squares = added((values - mean[row, None]).square()) + zeros * mean.square()
    low, high = (torch.where(zeros > 0, 0.0, end).double() for end in (math.inf, -math.inf))
    return {
        "mean": mean.tolist(),
        "std": (squares / (n - 1)).sqrt().tolist(),
        "min": low.scatter_reduce(0, row, values.amin(1), "amin").tolist(),
        "max": high.scatter_reduce(0, row, values.amax(1), "amax").tolist(),
        "non_finite": added((~torch.isfinite(values)).long()).tolist(),
    }


def _norm(rows: Tensor) -> Tensor:
    """The 2-norm of each row; of a long one by the norms of its pieces."""
    n = rows.shape[1]
    if n > _IN_ONE_GO and rows.dtype is torch.float32:
        pieces = math.ceil(n / _IN_ONE_GO)
        even = n - n % pieces
        norms = torch.linalg.vector_norm(rows[:, :even].view(rows.shape[0], pieces, -1), dim=2)
        rows = torch.cat((norms, rows[:, even:]), 1)
    whole: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return whole


def _scaled(rows: np.ndarray[Any, Any], n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Mean and standard deviation of finite, unequal values, where neither sums nor squares leave their range."""
    rows = rows.astype(np.float64)
    low, high = np.minimum.reduce(rows, axis=1), np.maximum.reduce(rows, axis=1)
    scale = np.maximum(-low, high)
    low = low / scale
    rows = rows / scale[:, None] - low[:, None]
    mean = np.add.reduce(rows, axis=1) / n
    std = np.sqrt(np.add.reduce(np.square(rows - mean[:, None]), axis=1) / (n - 1))
    with np.errstate(over="ignore"):
        return (low + mean) * scale, std * scale
