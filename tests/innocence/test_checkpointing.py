"""Gradient checkpointing computes a layer twice; it is captured once, and rightly, and computes the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Gradient, Output, node
from tests.sameness import canonical
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from endoscope import SequentialDebugger, load_debug_outputs

from .conftest import differences, generators


class Checkpointed(nn.Module):
    """A stem, a body that is computed again in the backward (or not), and a head."""

    def __init__(self, again: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(4, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)
        self.again = again  # use_reentrant, or None for no checkpointing

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.body(x) if self.again is None else checkpoint(self.body, x, use_reentrant=self.again)
        return self.head(x)


NODES = [node("output", Output, layer_name="*", calls="all"), node("gradient", Gradient, layer_name="*", calls="all")]


def batch(step: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(step))


def train(model: Checkpointed, folder: Path | None) -> tuple[Any, list[dict[str, Any]]]:
    """Two steps; returns what was computed, and what the debugger saw."""
    torch.manual_seed(1)
    debugger = None
    if folder is not None:
        debugger = SequentialDebugger(NODES, model, output_dir=folder)
        debugger.enabled = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    computed: dict[str, Any] = {}
    seen = []
    for step in range(2):
        x = batch(step).requires_grad_()
        outputs = model(x)
        outputs.square().sum().backward()
        if debugger is not None:
            meta = {"idx": [3 * step, 3 * step + 1, 3 * step + 2]}
            seen.append(debugger({"inputs": x, "outputs": outputs, "meta_info": meta}, model))
        computed[f"{step}: outputs"] = canonical(outputs)
        computed[f"{step}: gradients"] = canonical([p.grad for p in model.parameters()])
        optimizer.step()
        computed[f"{step}: weights"] = canonical([*model.parameters()])
        computed.update({f"{step}: {k}": v for k, v in generators().items()})
    if debugger is not None:
        debugger.close()
    return computed, seen


@pytest.mark.parametrize("again", [True, False], ids=["reentrant", "saved"])
def test_the_same_bits(again: bool, folder: Path) -> None:
    assert differences(train(Checkpointed(again), None)[0], train(Checkpointed(again), folder)[0]) == set()


@pytest.mark.parametrize("again", [True, False], ids=["reentrant", "saved"])
def test_captured_once_and_rightly(again: bool, tmp_path: Path) -> None:
    expected = train(Checkpointed(None), tmp_path / "plain")[1]
    found = train(Checkpointed(again), tmp_path / "again")[1]
    assert [[*s] for s in found] == [[*s] for s in expected]
    for step, seen in enumerate(found):
        for name, calls in seen.items():
            assert len(calls) == 1, name
            assert canonical(calls) == canonical(expected[step][name]), name
    assert load_debug_outputs(tmp_path / "again").notes(0) == load_debug_outputs(tmp_path / "plain").notes(0)


@pytest.mark.parametrize("again", [True, False], ids=["reentrant", "saved"])
def test_the_whole_model_checkpointed(again: bool, tmp_path: Path) -> None:
    """The root runs a second time in the backward: that is no new forward."""
    expected = train(Checkpointed(None), tmp_path / "plain")[1]
    model = Checkpointed(None)
    debugger = SequentialDebugger(NODES, model, output_dir=tmp_path / "again")
    debugger.enabled = True
    torch.manual_seed(1)
    x = batch(0).requires_grad_()
    checkpoint(model, x, use_reentrant=again).square().sum().backward()
    seen = debugger({"meta_info": {"idx": [0, 1, 2]}}, model)
    debugger.close()
    assert canonical(dict(seen)) == canonical(dict(expected[0]))


def test_a_second_look_is_not_the_first_ones(folder: Path) -> None:
    """A gradient that arrives after the debugger was called belongs to no later datapoint."""
    model = Checkpointed(True)
    debugger = SequentialDebugger([node("gradient", Gradient, layer_name="body.0")], model, output_dir=folder)
    debugger.enabled = True
    outputs = model(batch(0).requires_grad_())
    debugger({"meta_info": {"idx": 0}}, model)
    outputs.sum().backward()
    assert debugger({"meta_info": {"idx": 1}}, model) == {}
    debugger.close()


def test_the_comparison_can_fail(folder: Path) -> None:
    other = Checkpointed(True)
    other.body[2].p = 0.5
    found = differences(train(Checkpointed(True), None)[0], train(other, folder)[0])
    assert {"outputs", "gradients", "weights"} <= found
