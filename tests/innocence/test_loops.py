"""A loop computes the same bits with debuggers and without: outputs, gradients, weights, buffers, draws, hooks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes import Gradient, Output, node
from torch import nn

from endoscope import BaseDebugger, ForwardDebugger, load_debug_outputs
from endoscope.debuggers import (
    ActivationStatsDebugger,
    AttentionDebugger,
    FeatureMapDebugger,
    GradCAMDebugger,
    GradientStatsDebugger,
    LayerOutputDebugger,
)

from .conftest import CASES, Case, Loop, Nodes, Trace, differences

LOOPS: dict[str, dict[str, Any]] = {
    "train": {},
    "train, called before the backward": {"moment": "before backward"},
    "train, called after the step": {"moment": "after step"},
    "accumulate": {"micro": 2},
    "autocast": {"cast": True},
    "no_grad": {"evaluate": torch.no_grad},
    "inference_mode": {"evaluate": torch.inference_mode},
    "no_grad, autocast": {"evaluate": torch.no_grad, "cast": True},
}


# ---------------------------------------------------------------- debuggers that draw and that fail
def draw() -> dict[str, Any]:
    return {"drawn": torch.rand(3), "dropped": nn.functional.dropout(torch.ones(4), 0.5)}


class Draws(BaseDebugger):
    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        return draw()


class Registry:
    """As many projects have one: it tells no other base of a new class."""

    ready_made = True

    def __init_subclass__(cls) -> None:
        pass


class DrawsInForward(Registry, ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        torch.manual_seed(77)
        return draw()


class DrawsInBackward(Gradient):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        return draw()


class DrawsEverywhere(BaseDebugger):
    uses_random = True

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        np.random.seed(5)
        return {"python": random.random(), "numpy": np.random.rand(), "shuffled": random.sample(range(9), 3), **draw()}


class DrawsAndFails(DrawsEverywhere):
    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        super().__call__(datapoint, model)
        raise RuntimeError("after drawing")


class Fails(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        torch.set_grad_enabled(True)
        torch.rand(2)
        raise ValueError("in the forward")


class FailsInBackward(Gradient):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        torch.rand(2)
        raise ValueError("in the backward")


EVERYTHING = [
    node("output", Output, layer_name="*", calls="all"),
    node("gradient", Gradient, layer_name="*", calls="all"),
    node("root", Output, layer_name=""),
    node("features", FeatureMapDebugger, layer_name="*"),
    node("statistics", ActivationStatsDebugger, layer_name="*"),
    node("small", LayerOutputDebugger, layer_name="*", downsample_factor=2),
    node("attention", AttentionDebugger, layer_name="*"),
    node("gradients", GradientStatsDebugger, layer_name="*"),
]
RANDOM = [
    node("draws", Draws),
    node("draws in forward", DrawsInForward, layer_name="*"),
    node("draws in backward", DrawsInBackward, layer_name="*"),
    node("draws everywhere", DrawsEverywhere),
]
FAILING = [
    node("fails", DrawsAndFails),
    node("fails in forward", Fails, layer_name="*"),
    node("fails in backward", FailsInBackward, layer_name="*"),
]
GRADCAM = [node("late", GradCAMDebugger, target_layer="4"), node("early", GradCAMDebugger, target_layer="0")]
KINDS = {"every kind": EVERYTHING, "random": RANDOM, "failing": FAILING, "all": EVERYTHING + RANDOM + FAILING}

_plain_runs: dict[tuple[str, str], Trace] = {}


def without(case: Case, loop: str) -> Trace:
    if (case.name, loop) not in _plain_runs:
        _plain_runs[case.name, loop] = Loop(case, **LOOPS[loop]).run()
    return _plain_runs[case.name, loop]


def lstm_in_bfloat16() -> bool:
    """Whether oneDNN has it on this processor; torch offers nothing else."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(6, 8)(torch.zeros(1, 1, 6))
    except RuntimeError:
        return False
    return True


RUNS = [
    pytest.param(case, kind, loop, id=f"{case}-{kind}-{loop}")
    for case in CASES
    for loop in LOOPS
    for kind in (KINDS if loop == "train" else ["all"])
    if not (case.name == "lstm" and "autocast" in loop and not lstm_in_bfloat16())
]


# ---------------------------------------------------------------- tests
@pytest.mark.parametrize(("case", "kind", "loop"), RUNS)
def test_nothing_differs(case: Case, kind: str, loop: str, folder: Path) -> None:
    assert differences(without(case, loop), Loop(case, **LOOPS[loop]).run(KINDS[kind], folder)) == set()


@pytest.mark.parametrize("loop", LOOPS)
def test_grad_cam_leaves_no_trace(loop: str, folder: Path) -> None:
    cnn = CASES[0]
    assert differences(without(cnn, loop), Loop(cnn, **LOOPS[loop]).run(GRADCAM, folder)) == set()
    assert {*load_debug_outputs(folder)[0]} == {"late", "early"}


def test_two_runs_without_are_the_same() -> None:
    for case in CASES:
        assert differences(without(case, "train"), Loop(case).run()) == set()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_debuggers_have_looked(case: Case, folder: Path) -> None:
    """What the comparison found innocent was not idle."""
    Loop(case).run(EVERYTHING, folder)
    seen = load_debug_outputs(folder)
    assert len(seen) == 4
    layers = [n for n, m in case.model().named_modules() if n]
    for kind in ("output", "features", "statistics", "small", "gradient", "gradients"):
        absent = {n for n in layers if f"{kind}/{n}" not in seen.list(0)}
        assert absent <= {n for n in layers if n.endswith(("out_proj", ".layers"))}, kind  # those are never called


# ---------------------------------------------------------------- the comparison can fail
class Meddles(BaseDebugger):
    """Changes one thing of the training, on purpose."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        match self.what:
            case "weights":
                next(model.parameters()).data[0] += 1e-7
            case "gradients":
                grad = next(model.parameters()).grad
                assert grad is not None
                grad.neg_()
            case "buffers":
                next(model.buffers()).data.mul_(1.0000002)
            case "flags":
                list(model.modules())[-1].eval()
            case "outputs":
                datapoint["outputs"].data.add_(1e-3)
            case "inputs":
                datapoint["inputs"].zero_()
            case "rng python":
                random.random()
            case "rng numpy":
                np.random.rand()
            case "hooks":
                model.register_forward_hook(lambda m, i, o: None)
            case "fired":
                model(datapoint["inputs"])
            case "objects":
                model.register_buffer("another", torch.zeros(1))
        return {}


class MeddlesInForward(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        output.add_(1e-3)


class UnguardedDraw(nn.Module):
    """A module of the user that draws: what a debugger would do if nobody restored the generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return x


@pytest.mark.parametrize(
    "what",
    [
        "weights",
        "gradients",
        "buffers",
        "flags",
        "outputs",
        "inputs",
        "rng python",
        "rng numpy",
        "hooks",
        "fired",
        "objects",
    ],
)
def test_a_meddling_debugger_is_caught(what: str, folder: Path) -> None:
    cnn = CASES[0]
    found = differences(without(cnn, "train"), Loop(cnn).run([node("meddles", Meddles, what=what)], folder))
    assert what in found


def test_meddling_in_the_forward_is_caught(folder: Path) -> None:
    nodes: Nodes = [node("meddles", MeddlesInForward, layer_name="0")]
    found = differences(without(CASES[0], "no_grad"), Loop(CASES[0], evaluate=torch.no_grad).run(nodes, folder))
    assert {"outputs"} <= found


def test_a_draw_is_caught() -> None:
    drawing = Case("cnn", lambda: nn.Sequential(*CASES[0].build(), UnguardedDraw()), CASES[0].shape)
    assert "rng torch" in differences(without(CASES[0], "train"), Loop(drawing).run())
