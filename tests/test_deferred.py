"""Small tensors that reach the host together."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from endoscope import deferred
from endoscope.deferred import Deferred, DeferredError, to_host
from endoscope.errors import EndoscopeError


def unchanged(value: Any) -> Any:
    return value


def test_tensors_of_several_dtypes_arrive_in_order_with_their_shapes() -> None:
    tensors = [
        torch.tensor(1.5, requires_grad=True),
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 2),
        torch.tensor([True, False]),
        torch.full((1, 2), 2.5, dtype=torch.bfloat16),
        torch.ones(3),
    ]
    arrived = to_host(tensors)()
    assert len(arrived) == len(tensors)
    for found, t in zip(arrived, tensors, strict=True):
        assert (found.dtype, found.shape, found.requires_grad) == (t.dtype, t.shape, False)
        assert torch.equal(found, t.detach())
    assert to_host([])() == []


def test_one_copy_for_all_tensors_of_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[torch.Tensor] = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copies.append(t) or original(t))
    to_host([torch.ones(6) for _ in range(100)] + [torch.ones(2, dtype=torch.int64)])()
    assert [t.numel() for t in copies] == [600, 2]


@pytest.mark.parametrize("count", [0, 1, deferred.MOST_VALUES, 3 * deferred.MOST_VALUES + 7])
def test_values_come_back_in_order_converted(count: int) -> None:
    losses = Deferred(float)
    for k in range(count):
        losses.put(torch.tensor(k / 2, requires_grad=True))
    assert losses.values() == losses.values() == [k / 2 for k in range(count)]
    losses.put(torch.tensor(-1.0))
    assert losses.values()[count:] == [-1.0]
    losses.reset()
    assert losses.values() == []


def test_a_value_is_copied_when_it_is_put() -> None:
    loss = torch.tensor(2.0)
    values: Deferred[Any] = Deferred(unchanged)
    values.put({"loss": loss, "parts": [loss * 2, "text", 3]})
    loss.zero_()
    assert values.values() == [{"loss": torch.tensor(2.0), "parts": [torch.tensor(4.0), "text", 3]}]


def test_large_values_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[int] = []
    monkeypatch.setattr(deferred, "to_host", lambda tensors: transfers.append(len(tensors)) or to_host(tensors))
    values: Deferred[Any] = Deferred(unchanged)
    for _ in range(6):
        values.put(torch.zeros(deferred.MOST_BYTES // 8))  # half of what may gather
    assert transfers == [2, 2, 2]
    assert len(values.values()) == 6


def test_an_error_of_convert_is_raised_with_its_cause_until_reset() -> None:
    def convert(value: torch.Tensor) -> float:
        if value < 0:
            raise ValueError("it is negative")
        return value.item()

    values = Deferred(convert)
    for value in (1.0, -1.0, 2.0):
        values.put(torch.tensor(value))
    for _ in range(2):
        with pytest.raises(DeferredError, match=r"could not be converted \(ValueError: it is negative\)") as caught:
            values.values()
        assert isinstance(caught.value.__cause__, ValueError)
        assert isinstance(caught.value, EndoscopeError)
    values.reset()
    values.put(torch.tensor(3.0))
    assert values.values() == [3.0]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_copy_starts_empty(duplicate: Any) -> None:
    values = Deferred(float)
    values.put(torch.tensor(1.0))
    other = duplicate(values)
    other.put(torch.tensor(2.0))
    assert (values.values(), other.values()) == ([1.0], [2.0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_nothing_waits_for_the_device_before_the_values_are_asked_for() -> None:
    values = Deferred(float)
    with torch.cuda.device(0):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for k in range(deferred.MOST_VALUES - 1):
                values.put(torch.full((), float(k), device="cuda"))
            arrived = to_host([torch.ones(3, device="cuda"), torch.ones(2, device="cuda")])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert values.values() == [float(k) for k in range(deferred.MOST_VALUES - 1)]
    assert [t.tolist() for t in arrived()] == [[1.0] * 3, [1.0] * 2]
