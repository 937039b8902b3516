"""Tensors that are stored as several plain ones: sparse and quantised. And the bytes and rows of any tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from endoscope.errors import PageFormatError
from endoscope.torch_private import empty_per_channel_quantized, empty_per_tensor_quantized

COMPOSITES = frozenset(("sparse_coo", "sparse_compressed", "quantized"))
_LAYOUTS = {str(lay): lay for lay in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)}
_QUANTIZED = {str(getattr(torch, n)): getattr(torch, n) for n in ("qint8", "quint8", "qint32") if hasattr(torch, n)}

Parts = dict[str, torch.Tensor]


def take_apart(t: torch.Tensor) -> tuple[str, Parts, dict[str, Any]]:
    """The kind, the plain tensors and the other facts that `put_together` needs."""
    if t.is_quantized:
        return "quantized", *_take_quantized_apart(t)
    shape = list(t.shape)
    if t.layout is torch.sparse_coo:
        parts = {"indices": t._indices(), "values": t._values()}
        return "sparse_coo", parts, {"shape": shape, "coalesced": t.is_coalesced()}
    if str(t.layout) in _LAYOUTS:
        by_row = t.layout in (torch.sparse_csr, torch.sparse_bsr)
        outer, within = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
        parts = {"outer": outer, "within": within, "values": t.values()}
        return "sparse_compressed", parts, {"layout": str(t.layout), "shape": shape}
    raise TypeError(f"tensors of layout {t.layout} cannot be stored")


def _take_quantized_apart(t: torch.Tensor) -> tuple[Parts, dict[str, Any]]:
    parts = {"values": t.int_repr()}
    if t.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
        parts |= {"scales": t.q_per_channel_scales(), "zeros": t.q_per_channel_zero_points()}
        return parts, {"dtype": str(t.dtype), "axis": t.q_per_channel_axis()}
    return parts, {"dtype": str(t.dtype), "scale": t.q_scale(), "zero": t.q_zero_point()}


def put_together(node: dict[str, Any], parts: Parts) -> torch.Tensor:
    """The tensor that `take_apart` was given. Raises for parts that do not fit together."""
    if node["$"] == "quantized":
        return _put_quantized_together(node, parts)
    if node["$"] == "sparse_coo":
        coalesced = bool(node["coalesced"])
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], node["shape"], is_coalesced=coalesced, check_invariants=True
        )
    outer, within, values = parts["outer"], parts["within"], parts["values"]
    layout = _LAYOUTS[node["layout"]]
    return torch.sparse_compressed_tensor(outer, within, values, node["shape"], layout=layout, check_invariants=True)


def _put_quantized_together(node: dict[str, Any], parts: Parts) -> torch.Tensor:
    dtype, values = _QUANTIZED[node["dtype"]], parts["values"].clone()
    if "axis" in node:
        tensor = empty_per_channel_quantized(
            values.shape, scales=parts["scales"], zero_points=parts["zeros"], axis=node["axis"], dtype=dtype
        )
    else:
        tensor = empty_per_tensor_quantized(values.shape, scale=node["scale"], zero_point=node["zero"], dtype=dtype)
    target, source = tensor.untyped_storage(), values.untyped_storage()
    if target.nbytes() != source.nbytes():
        raise PageFormatError("quantised tensor and its values differ in size")
    target.copy_(source)
    return tensor


# ---------------------------------------------------------------- rows
def one_row(t: torch.Tensor, row: int) -> torch.Tensor:
    """Row ``row`` of any tensor, with a leading 1 in its shape."""
    if t.is_quantized or t.layout is torch.strided:
        return t[row : row + 1]
    if t.layout is torch.sparse_coo:
        return _coo_row(t, row)
    _, parts, _ = take_apart(t)
    outer, within, values = parts["outer"], parts["within"], parts["values"]
    if outer.ndim > 1:  # a batch of matrices
        outer, within, values = (part[row : row + 1] for part in (outer, within, values))
    elif t.layout is torch.sparse_csr:
        first, end = outer[row : row + 2].tolist()
        outer, within, values = torch.tensor([0, end - first]).to(outer), within[first:end], values[first:end]
    else:  # rows lie across the columns, or inside blocks
        plain: torch.Tensor = t.to_sparse_coo()  # type: ignore[no-untyped-call]
        sliced = _coo_row(plain.coalesce(), row)
        return sliced.to_sparse(layout=t.layout) if t.layout is torch.sparse_csc else sliced
    return torch.sparse_compressed_tensor(
        outer, within, values, (1, *t.shape[1:]), layout=t.layout, check_invariants=False
    )


def _coo_row(t: torch.Tensor, row: int) -> torch.Tensor:
    indices, values = t._indices(), t._values()
    keep = (indices[0] == row).nonzero().flatten()
    indices = indices[:, keep]
    indices[0] = 0
    shape = (1, *t.shape[1:])
    coalesced = t.is_coalesced() or None
    return torch.sparse_coo_tensor(
        indices, _select(values, keep), shape, is_coalesced=coalesced, check_invariants=False
    )


def _select(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``values[keep]`` for any dtype: the narrow floats cannot be indexed, but their bytes can."""
    if not len(values) or not len(keep):
        return values[:0]
    selected = as_bytes(values).reshape(len(values), -1)[keep]
    return selected.view(values.dtype).reshape(len(keep), *values.shape[1:])


# ---------------------------------------------------------------- bytes
def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a plain tensor in row-major order; no copy if they are in that order already."""
    if not t.numel():
        return torch.empty(0, dtype=torch.uint8)
    return t.contiguous().as_strided((t.numel(),), (1,)).view(torch.uint8)


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.stack` of plain tensors of one shape and dtype, for any dtype."""
    first = tensors[0]
    if not first.numel():
        return first.new_empty((len(tensors), *first.shape))
    return torch.stack([as_bytes(t) for t in tensors]).view(first.dtype).reshape(len(tensors), *first.shape)
