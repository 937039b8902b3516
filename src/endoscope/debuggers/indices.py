"""Which datapoint is this: ``datapoint["meta_info"]["idx"]`` in the forms that loaders give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from endoscope.errors import DatapointError

_EXPECTED = "expected datapoint['meta_info']['idx'] to be the datapoint's integer index, or one for each of a batch"


def datapoint_index(datapoint: Any) -> int | list[int]:
    """The index of a datapoint, or the list of them for a batch of two or more.

    >>> datapoint_index({"meta_info": {"idx": torch.tensor([4, 5])}})
    [4, 5]
    >>> datapoint_index({"meta_info": {"idx": [4]}})
    4
    """
    if type(datapoint) is not dict and not isinstance(datapoint, Mapping):
        raise DatapointError(f"a datapoint must be a dict, not {type(datapoint).__name__}; {_EXPECTED}")
    meta = datapoint.get("meta_info")
    if (type(meta) is not dict and not isinstance(meta, Mapping)) or "idx" not in meta:
        found = (
            f"meta_info has {list(meta)[:8]}" if isinstance(meta, Mapping) else f"meta_info is {type(meta).__name__}"
        )
        raise DatapointError(f"datapoint without an index: {found}; {_EXPECTED}")
    idx = meta["idx"]
    if type(idx) is int and -(1 << 63) <= idx < 1 << 63:
        return idx
    if type(idx) is list and len(idx) == 1:
        return _index(idx[0])
    if isinstance(idx, (torch.Tensor, np.ndarray)):
        idx = idx.tolist()
    if not isinstance(idx, (list, tuple)):
        return _index(idx)
    if len(idx) == 1:
        return _index(idx[0])
    if not idx:
        raise DatapointError(f"meta_info.idx is empty; {_EXPECTED}")
    return [_index(i) for i in idx]


def _index(value: Any) -> int:
    if type(value) is not int:
        if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:  # of a list of them
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise DatapointError(f"meta_info.idx holds {type(value).__name__} {str(value)[:40]!r}; {_EXPECTED}")
    if not -(1 << 63) <= value < 1 << 63:
        raise DatapointError(f"meta_info.idx {value} does not fit into 64 bits")
    return int(value)
