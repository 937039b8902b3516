"""Under autocast a cast weight is kept for the whole region: what a debugger casts must not be what the model finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Output, node
from tests.sameness import canonical
from torch import nn

from endoscope import BaseDebugger, ForwardDebugger, SequentialDebugger


class UsesTheNextWeight(ForwardDebugger):
    """Computes with a weight that the model has not used yet."""

    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"next": nn.functional.linear(output, NET[0][2].weight)}


class RunsTheModel(BaseDebugger):
    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        return {"again": model(datapoint["inputs"])}


NET: list[nn.Sequential] = []


def gradients(nodes: list[dict[str, Any]] | None, folder: Path) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
    NET[:] = [model]
    debugger = SequentialDebugger(nodes or [], model, output_dir=folder)
    debugger.enabled = nodes is not None
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(2):
            loss = model(x).sum()
            debugger({"inputs": x, "meta_info": {"idx": step}}, model)
    loss.backward()
    debugger.close()
    return [canonical(p.grad) for p in model.parameters()]


@pytest.mark.parametrize(
    "nodes",
    [[node("next", UsesTheNextWeight, layer_name="0")], [node("again", RunsTheModel)]],
    ids=["forward", "after"],
)
def test_gradients_reach_every_weight(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    assert gradients(nodes, tmp_path / "with") == gradients(None, tmp_path / "without")


def test_captures_have_the_dtype_that_the_layer_gave(folder: Path) -> None:
    class Widen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double()

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), Widen())
    debugger = SequentialDebugger([node("output", Output, layer_name="*")], model, output_dir=folder)
    debugger.enabled = True
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 4))
    seen = debugger({"meta_info": {"idx": [0, 1]}}, model)
    debugger.close()
    assert [s["output"].dtype for s in seen.values()] == [torch.bfloat16, torch.bfloat16, torch.float64]
