"""Tensors of kinds about which torch warns when they are made."""

from __future__ import annotations

import warnings

import torch


def csr() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(5).to_sparse_csr()


def quantized(*shape: int) -> torch.Tensor:
    """All ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(*shape), 0.1, 0, torch.quint8)


def sparse(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_coo_tensor(indices, values, shape)
