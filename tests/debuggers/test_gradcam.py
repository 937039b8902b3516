from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from endoscope.debuggers.gradcam import GradCAMDebugger
from endoscope.errors import ConfigError, LayerNotFoundError
from endoscope.explain import GradCAM
from endoscope.pages.pickle_pages import one_datapoint


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).eval()  # fmt: skip


def images(batch: int) -> Tensor:
    scale = torch.tensor([1.0, 30.0, -30.0, 5.0])[:batch].view(-1, 1, 1, 1)
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(1)) * scale


def test_keys_and_numbers() -> None:
    model, x = net(), images(1)
    seen = GradCAMDebugger("1")({"inputs": x}, model)
    assert set(seen) == {"gradcam", "target_layer", "target_class", "gradcam_stats"}
    assert set(seen["gradcam_stats"]) == {"mean", "std", "shape", "non_finite"}
    assert seen["target_layer"] == "1"
    assert seen["target_class"] == model(x).argmax().item()
    assert torch.equal(seen["gradcam"], GradCAM(model, "1").generate_cam(x))
    assert seen["gradcam_stats"]["shape"] == [1, 7, 7]
    assert seen["gradcam_stats"]["mean"] == pytest.approx(seen["gradcam"].mean().item(), rel=1e-5)
    assert seen["gradcam_stats"]["std"] == pytest.approx(seen["gradcam"].std().item(), rel=1e-5)


def test_the_class_that_was_asked_for() -> None:
    seen = GradCAMDebugger("1", target_class=3)({"inputs": images(2)}, net())
    assert seen["target_class"] == [3, 3]


def test_a_batch_is_each_of_its_datapoints() -> None:
    model, x = net(), images(4)
    debugger = GradCAMDebugger("1")
    together = debugger({"inputs": x}, model)
    assert len(set(together["target_class"])) > 1
    for j in range(4):
        alone, mine = debugger({"inputs": x[j : j + 1]}, model), one_datapoint(together, j, 4)
        assert torch.allclose(mine["gradcam"], alone["gradcam"], atol=1e-5)
        assert mine["target_class"] == alone["target_class"]
        assert mine["gradcam_stats"].pop("shape") == alone["gradcam_stats"].pop("shape")
        assert mine["gradcam_stats"] == pytest.approx(alone["gradcam_stats"], rel=1e-4)


@pytest.mark.parametrize("datapoint", [{}, {"outputs": torch.zeros(1)}, {"inputs": None}])
def test_without_inputs(datapoint: dict[str, Any]) -> None:
    assert "no 'inputs'" in GradCAMDebugger("1")(datapoint, net())["error"]


def test_inputs_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, image: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(image)}

    seen = GradCAMDebugger("net.1")({"inputs": {"image": images(1)}}, Named())
    assert torch.equal(seen["gradcam"], GradCAM(net(), "1").generate_cam(images(1)))


def test_an_unknown_layer_is_found_before_the_first_step() -> None:
    debugger = GradCAMDebugger("backbone")
    with pytest.raises(LayerNotFoundError, match="'backbone'"):
        debugger.check(net())
    with pytest.raises(LayerNotFoundError, match="'backbone'"):
        debugger({"inputs": images(1)}, net())
    GradCAMDebugger("1").check(net())


@pytest.mark.parametrize("target", [-1, "cat", 1.0, True])
def test_an_impossible_class_is_refused_at_construction(target: Any) -> None:
    with pytest.raises(ConfigError, match="target_class is"):
        GradCAMDebugger("1", target_class=target)
