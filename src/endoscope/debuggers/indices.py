"""The index of a datapoint: ``datapoint["meta_info"]["idx"]`` in the forms that data loaders return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from endoscope.errors import DatapointError

_EXPECTED = "expected datapoint['meta_info']['idx'] to be the datapoint's integer index, or one for each of a batch"


def datapoint_index(datapoint: Any) -> int | list[int]:
    """The index of a datapoint, or the list of indices for a batch of two or more.

    >>> datapoint_index({"meta_info": {"idx": torch.tensor([4, 5])}})
    [4, 5]
    >>> datapoint_index({"meta_info": {"idx": [4]}})
    4
    """
    if not isinstance(datapoint, Mapping):
        raise DatapointError(f"a datapoint must be a dict, not {type(datapoint).__name__}; {_EXPECTED}")
    meta = datapoint.get("meta_info")
    if not isinstance(meta, Mapping):
        raise DatapointError(f"datapoint without an index: meta_info is {type(meta).__name__}; {_EXPECTED}")
    if "idx" not in meta:
        raise DatapointError(f"datapoint without an index: meta_info has {list(meta)[:8]}; {_EXPECTED}")
    idx = meta["idx"]
    if isinstance(idx, (torch.Tensor, np.ndarray)):
        idx = idx.tolist()
    indices = [_index(i) for i in (idx if isinstance(idx, (list, tuple)) else [idx])]
    if not indices:
        raise DatapointError(f"meta_info.idx is empty; {_EXPECTED}")
    return indices if len(indices) > 1 else indices[0]


def _index(value: Any) -> int:
    if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:  # from a list of them
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise DatapointError(f"meta_info.idx holds {type(value).__name__} {str(value)[:40]!r}; {_EXPECTED}")
    if not -(1 << 63) <= value < 1 << 63:
        raise DatapointError(f"meta_info.idx {value} does not fit into 64 bits")
    return int(value)
