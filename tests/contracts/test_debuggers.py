"""What every ready-made debugger keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.shipped import check_cases, run_docstring, shipped
from tests.innocence.conftest import generators, hooks_of
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import BackwardDebugger, BaseDebugger, ForwardDebugger, SequentialDebugger, load_debug_outputs

CASES: dict[str, dict[str, Any]] = {
    "ActivationStatsDebugger": {"layer_name": "conv"},
    "AttentionDebugger": {"layer_name": "attn"},
    "FeatureMapDebugger": {"layer_name": "conv"},
    "GradCAMDebugger": {"target_layer": "conv"},
    "GradientStatsDebugger": {"layer_name": "conv"},
    "LayerOutputDebugger": {"layer_name": "conv", "downsample_factor": 2},
}
"""The arguments of each debugger for `Net`."""

DEBUGGERS = [cls for cls in shipped(BaseDebugger, "endoscope.debuggers") if cls is not SequentialDebugger]
each = pytest.mark.parametrize("cls", DEBUGGERS)
of_a_layer = pytest.mark.parametrize(
    "cls", [cls for cls in DEBUGGERS if issubclass(cls, (ForwardDebugger, BackwardDebugger))]
)


class Net(nn.Module):
    """A convolution, an attention that returns its weights, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.drop = nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.attn, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.conv(x))).flatten(2).mT
        x, _ = self.attn(x, x, x, need_weights=True)
        return self.head(x.mean(1))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def inputs() -> Tensor:
    return torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def sequential(cls: type, model: nn.Module, folder: Path, args: dict[str, Any] | None = None) -> SequentialDebugger:
    config = {"class": f"{cls.__module__}.{cls.__name__}", "args": CASES[cls.__name__] if args is None else args}
    return SequentialDebugger([{"name": "one", "debugger_config": config}], model, output_dir=folder)


def step(model: nn.Module, debugger: SequentialDebugger, x: Tensor, indices: list[int]) -> dict[str, Any]:
    outputs = model(x)
    tensor = outputs if isinstance(outputs, Tensor) else None
    if tensor is not None and tensor.requires_grad:
        tensor.sum().abs().backward()
    return debugger({"inputs": x, "outputs": outputs, "meta_info": {"idx": indices}}, model)


def assert_close(one: Any, other: Any) -> None:
    """The same types, keys and text; numbers up to the last bits, which depend on the size of the batch."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b)
    elif isinstance(one, (Tensor, float)):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-6)
    else:
        assert one == other


def test_every_debugger_has_a_case() -> None:
    check_cases(DEBUGGERS, CASES, "CASES in tests/contracts/test_debuggers.py")


@each
def test_the_docstring_has_an_example_that_runs(cls: type) -> None:
    run_docstring(cls)


@each
def test_every_datapoint_of_a_batch_has_the_values_of_a_batch_of_one(
    cls: type, model: nn.Module, tmp_path: Path
) -> None:
    model.eval()
    for size in (1, 3):
        with sequential(cls, model, tmp_path / f"{size}") as debugger:
            debugger.enabled = True
            for start in range(0, 3, size):
                indices = [*range(start, start + size)]
                assert list(step(model, debugger, inputs()[start : start + size], indices)) == ["one"]
    alone, together = load_debug_outputs(tmp_path / "1"), load_debug_outputs(tmp_path / "3")
    for idx in range(3):
        assert alone.notes(idx) == together.notes(idx) == {}
        assert_close(alone[idx], together[idx])
        assert "error" not in alone[idx]["one"]


@each
def test_what_a_call_returns_is_what_is_stored(cls: type, model: nn.Module, tmp_path: Path) -> None:
    with sequential(cls, model, tmp_path) as debugger:
        debugger.enabled = True
        returned = step(model, debugger, inputs()[:1], [0])
        expected = canonical(dict(returned))
    assert canonical(load_debug_outputs(tmp_path)[0]) == expected


@each
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_it_leaves_no_trace(cls: type, training: bool, model: nn.Module, tmp_path: Path) -> None:
    """Outputs, gradients, random numbers, flags and hooks are those of a run without it."""
    model.train(training)

    def run(debugger: SequentialDebugger | None) -> dict[str, Any]:
        torch.manual_seed(3)
        model.zero_grad()
        x = inputs()
        outputs = model(x)
        outputs.sum().backward()
        if debugger is not None:
            debugger({"inputs": x, "outputs": outputs, "meta_info": {"idx": [0, 1, 2]}}, model)
        return {
            "outputs": canonical(outputs),
            "inputs": canonical(x),
            "gradients": canonical({n: p.grad for n, p in model.named_parameters()}),
            "weights": canonical(model.state_dict()),
            "flags": [m.training for m in model.modules()],
            **generators(),
        }

    before = hooks_of(model)
    expected = run(None)
    with sequential(cls, model, tmp_path) as debugger:
        debugger.enabled = True
        assert run(debugger) == expected
    assert hooks_of(model) == before


@each
def test_a_disabled_debugger_has_no_hook_and_sees_nothing(cls: type, model: nn.Module, tmp_path: Path) -> None:
    before = hooks_of(model)
    with sequential(cls, model, tmp_path) as debugger:
        assert hooks_of(model) == before
        assert step(model, debugger, inputs(), [0, 1, 2]) == {}
        debugger.enabled = True
        debugger.enabled = False
        assert hooks_of(model) == before
        assert step(model, debugger, inputs(), [0, 1, 2]) == {}


@each
def test_an_unknown_layer_is_found_when_it_is_built(cls: type, model: nn.Module, tmp_path: Path) -> None:
    args = {k: "cnov" if k.endswith("layer") or k == "layer_name" else v for k, v in CASES[cls.__name__].items()}
    with pytest.raises(KeyError, match="closest: 'conv'"):
        sequential(cls, model, tmp_path, args)


# ---------------------------------------------------------------- odd outputs
ODD: dict[str, Any] = {
    "NaN and infinities": torch.tensor([[float("nan"), float("inf"), 1.0]]),
    "nothing but NaN": torch.full((1, 2, 4, 4), float("nan")),
    "empty": torch.empty(0, 3),
    "no channels": torch.empty(1, 0, 4, 4),
    "a number": torch.tensor(2.5),
    "one element": torch.ones(1),
    "half": torch.ones(1, 4, 4, dtype=torch.float16),
    "bfloat16": torch.ones(1, 2, 4, 4, dtype=torch.bfloat16),
    "double": torch.ones(1, 3, dtype=torch.float64),
    "complex": torch.ones(1, 3, 4, dtype=torch.complex64),
    "integers": torch.arange(6).reshape(1, 6),
    "booleans": torch.ones(1, 3, dtype=torch.bool),
    "a tuple": (torch.ones(1, 3), (torch.zeros(2), None)),
    "a dict": {"hidden": torch.ones(1, 3), "name": "text"},
    "an empty tuple": (),
    "text": "text",
    "None": None,
}


class Odd(nn.Module):
    """Returns the value whatever it is given; its floating tensors depend on a parameter."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value, self.weight = value, nn.Parameter(torch.ones(()))

    def _with_gradient(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value * self.weight.to(value.dtype) if value.is_floating_point() else value
        if isinstance(value, dict):
            return {k: self._with_gradient(v) for k, v in value.items()}
        return tuple(map(self._with_gradient, value)) if isinstance(value, tuple) else value

    def forward(self, x: Any) -> Any:
        return self._with_gradient(self.value)


@of_a_layer
@pytest.mark.parametrize("odd", ODD)
def test_odd_outputs(cls: type, odd: str, tmp_path: Path) -> None:
    """Each gives a record, or an absence with a reason; none is a failure, and what is stored is read back."""
    model = nn.Sequential()
    model.odd = Odd(ODD[odd])
    with sequential(cls, model, tmp_path, {**CASES[cls.__name__], "layer_name": "odd"}) as debugger:
        debugger.enabled = True
        returned = dict(step(model, debugger, torch.ones(1), [0]))
        expected = canonical(returned)
    records = load_debug_outputs(tmp_path)
    notes = records.notes(0)
    assert "failures" not in notes, notes
    if returned:
        assert canonical(records[0]) == expected
    else:
        assert notes["absent"]["one"]


@pytest.mark.parametrize("cls", [cls for cls in DEBUGGERS if not issubclass(cls, (ForwardDebugger, BackwardDebugger))])
@pytest.mark.parametrize("odd", ODD)
def test_odd_outputs_of_the_model(cls: type, odd: str, tmp_path: Path) -> None:
    """A debugger of the complete datapoint may fail on such a model; the loop goes on, and the record says why."""
    model = nn.Sequential()
    model.conv = Odd(ODD[odd])
    with sequential(cls, model, tmp_path) as debugger:
        debugger.enabled = True
        returned = dict(step(model, debugger, torch.ones(1), [0]))
        expected = canonical(returned)
    records = load_debug_outputs(tmp_path)
    if returned:
        assert canonical(records[0]) == expected
    else:
        notes = records.notes(0)
        assert notes.get("failures", notes.get("absent", {}))["one"]
