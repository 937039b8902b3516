"""The short way of encoding what most debuggers return writes the same bytes as the general one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from endoscope.pages import encoding
from endoscope.values import Summary, per_datapoint, whole_batch

MAPS = {"feature_map": torch.randn(1, 3, 4, 4), "second": torch.randn(2, 5)}
DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.int64, torch.float64, torch.complex64)
VALUES: dict[str, Any] = {
    "one map": {"feature_map": torch.randn(1, 3, 4, 4)},
    "two maps": MAPS,
    "with numbers": {**MAPS, "mean": 0.1, "count": 3, "none": None, "yes": True, "text": 'a "quoted" π\n'},
    "not finite": {**MAPS, "mean": math.nan, "most": math.inf},
    "nested": {**MAPS, "stats": {"mean": 0.25, "shape": [1, 3], "pair": (1, 2)}},
    "nested tensor": {**MAPS, "stats": {"mean": torch.ones(2)}},
    "nested twice": {"a": {"b": {"c": torch.ones(2), "$": 3}}, "d": {}},
    "records": {"maps": {**MAPS}, "values": [0.5] * 9, "stats": {"a": 1.0}, "info": {"path": "x"}},
    "many floats": {**MAPS, "values": [0.5, math.nan] * 50},
    "summary": {**MAPS, "stats": Summary(of="feature_map"), "layer_name": "conv1", "long": "x" * 200},
    "array": {**MAPS, "array": np.arange(3)},
    "two dtypes": {"small": torch.ones(3, dtype=torch.int8), "wide": torch.ones(2, dtype=torch.float64)},
    "odd length": {"bytes": torch.ones(5, dtype=torch.uint8), "more": torch.ones(2, dtype=torch.uint8)},
    "half": {"x": torch.ones(3, dtype=torch.float16)},
    "bfloat16": {"x": torch.ones(3, dtype=torch.bfloat16)},
    "bool": {"x": torch.tensor([True, False, True])},
    "complex": {"x": torch.ones(3, dtype=torch.complex64)},
    "0-d": {"x": torch.tensor(1.5)},
    "empty": {"x": torch.ones(0, 3), "y": torch.ones(2)},
    "transposed": {"x": torch.arange(6.0).view(2, 3).t()},
    "sparse": {"x": torch.eye(3).to_sparse()},
    "marked": {"x": whole_batch(torch.ones(2))},
    "a key of ours": {"$": 1, "x": torch.ones(2)},
    "keys of other types": {1: torch.ones(2)},
    "odd keys": {'"': torch.ones(2), "a/b": torch.ones(2), "é\\": 1},
    "a batch": {"x": torch.randn(2, 3), "y": torch.randn(2), "n": per_datapoint([1, 2]), "of": Summary(of="x")},
    "a batch of one map": {"x": torch.randn(2, 3, 4), "texts": per_datapoint(["a", "b"])},
    **{f"a batch of {d}": {"x": torch.ones(2, dtype=d), "y": torch.ones(2, 3, dtype=d)} for d in DTYPES},
    "a batch and a number": {"x": torch.randn(2, 3), "y": torch.tensor(1.0)},
    "a batch of bytes": {"x": torch.ones(2, 5, dtype=torch.uint8), "y": torch.ones(2, 1, dtype=torch.uint8)},
    "a batch of what is given once": {"x": torch.randn(2, 3), "list": [1, 2], "all": whole_batch([1.0])},
    "no tensor": {"mean": 1.0},
    "no dict": torch.ones(2),
}


def encoded(value: Any, idx: int | list[int]) -> tuple[bytes, bytes, int, list[tuple[int, list[encoding.Entry]]]]:
    record = encoding.encode_record(idx, {"first": value, "second": {"x": torch.ones(3)}}, {})
    return (
        record.line(640),
        b"".join(bytes(memoryview(b).cast("B")) for b in record.buffers),
        record.nbytes,
        [(start, [*each]) for start, each in record.blocks],
    )


@pytest.mark.parametrize("idx", [7, [7, 9]])
@pytest.mark.parametrize("name", VALUES)
def test_the_same_bytes(monkeypatch: pytest.MonkeyPatch, name: str, idx: int | list[int]) -> None:
    short = [encoded(VALUES[name], idx) for _ in range(2)]  # the second time by the plan of the first
    monkeypatch.setattr(encoding, "_by_plan", lambda *_: None)
    assert short == [encoded(VALUES[name], idx)] * 2


def test_other_values_of_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that stand in a format, numbers of other lengths, dicts that differ only in where they end."""
    values = [
        {"100 %s": {"x": torch.full((2,), 1.0 * k), "n": 10**k, "%d": "%" * k}, "y": torch.ones(3), "z": None}
        for k in range(3)
    ]
    values += [
        {"a": {"b": torch.ones(2), "c": {}, "d": torch.ones(2)}},
        {"a": {"b": torch.ones(2), "c": {"d": torch.ones(2)}}},
    ]
    values += [
        {"x": torch.ones(2)},
        {"x": torch.ones(1, 2)},
        {"x": torch.ones(2, dtype=torch.int32)},
        {"y": torch.ones(2)},
    ]
    short = [encoded(value, 7) for value in values]
    monkeypatch.setattr(encoding, "_by_plan", lambda *_: None)
    assert short == [encoded(value, 7) for value in values]


def test_plans_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_MOST_PLANS", 5)
    encoding._plans.clear()
    for n in range(1, 20):
        encoded({"x": torch.ones(n)}, 7)
    assert 0 < len(encoding._plans) <= 5


def test_the_short_way_is_taken() -> None:
    record = encoding.Record(1, b"", [], 0)
    assert encoding._by_plan(VALUES["with numbers"], "maps", 1, record) is not None
    assert record.nbytes == sum(t.nbytes for t in MAPS.values())
    for name in ("a batch", "a batch of one map", "a batch of bytes"):
        assert encoding._by_plan(VALUES[name], "maps", 2, encoding.Record([1, 2], b"", [], 0)) is not None


def test_a_plan_is_of_few_tensors() -> None:
    many = {f"x{k}": torch.ones(1) for k in range(encoding._MOST_TENSORS + 1)}
    assert encoding._by_plan(many, "maps", 1, encoding.Record(1, b"", [], 0)) is None
    many.popitem()
    assert encoding._by_plan(many, "maps", 1, encoding.Record(1, b"", [], 0)) is not None
