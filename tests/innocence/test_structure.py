"""Models of unusual build: what is captured is what the layer named by the user gave in this forward."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Gradient, Output, node
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import SequentialDebugger, load_debug_outputs

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def watch(folder: Path) -> Iterator[Any]:
    made: list[SequentialDebugger] = []

    def build(model: nn.Module, *layers: str, kind: type = Output, **args: Any) -> SequentialDebugger:
        nodes = [node(layer, kind, layer_name=layer, **args) for layer in layers]
        made.append(SequentialDebugger(nodes, model, output_dir=folder))
        made[-1].enabled = True
        return made[-1]

    yield build
    for debugger in made:
        debugger.close()


def look(debugger: SequentialDebugger) -> dict[str, Any]:
    return debugger({"meta_info": {"idx": [0, 1]}})


class AsksItself(nn.Module):
    """Test-time augmentation in the forward: the root calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, *, again: bool = True) -> Tensor:
        if not again:
            return self.body(x)
        x = self.stem(x)
        return self.body(x) + self(x.flip(0), again=False)


def test_one_tensor_returned_twice(watch: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            y = self.fc(x)
            return y, {"same": y, "other": y.square()}

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice = Twice()

        def forward(self, x: Tensor) -> Tensor:
            y, named = self.twice(x)
            return y + 2 * named["same"]

    debugger = watch(model := Sum(), "twice", kind=Gradient)
    model(X).sum().backward()
    y, named = look(debugger)["twice"]["gradient"]
    assert torch.equal(y, torch.full((2, 4), 3.0))
    assert torch.equal(named["same"], y)
    assert named["other"] is None


def test_layers_that_run_on_other_threads(watch: Any, folder: Path) -> None:
    """Branches in a thread pool: captured, or absent for a reason that is true."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(2) as pool:
                left, right = pool.map(lambda m: m(x), (self.left, self.right))
            return left + right

    debugger = watch(model := Branches(), "left", "right")
    model(X)
    seen = look(debugger)
    debugger.close()
    absent = load_debug_outputs(folder).notes(0).get("absent", {})
    for name in ("left", "right"):
        if name in seen:
            assert canonical(seen[name]["output"]) == canonical(model.get_submodule(name)(X))
        else:
            assert "thread" in absent[name]


def test_the_backward_on_another_thread(watch: Any) -> None:
    debugger = watch(model := nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "0", kind=Gradient)
    loss = model(X).sum()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
    assert look(debugger)["0"]["gradient"].shape == (2, 4)


def test_a_layer_exchanged_before_enabling(folder: Path) -> None:
    """A new head for another task: the name is what the user gave, so the new one is looked at."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    debugger = SequentialDebugger([node("head", Output, layer_name="1")], model, output_dir=folder)
    model[1] = nn.Linear(4, 7)
    debugger.enabled = True
    model(X)
    assert look(debugger)["head"]["output"].shape == (2, 7)
    debugger.close()


def test_parts_called_alone(watch: Any) -> None:
    """The user runs a part of the model: it is captured, and nothing of the datapoint before."""
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "decoder": nn.Linear(4, 4)})
    debugger = watch(model, "encoder", "decoder")
    model["encoder"](X)
    assert canonical(look(debugger)) == canonical({"encoder": {"output": model["encoder"](X)}})
    look(debugger)
    model["decoder"](X)
    assert [*look(debugger)] == ["decoder"]


def test_in_place_after_the_layer(watch: Any) -> None:
    """The capture is what the layer gave, not what an in-place layer made of it later."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(1.0, inplace=True))
    debugger = watch(model, "0", "1", "2")
    model(X)
    seen = look(debugger)
    expected = nn.functional.linear(X, model[0].weight, model[0].bias)
    assert canonical(seen["0"]["output"]) == canonical(expected)
    assert canonical(seen["1"]["output"]) == canonical(expected.relu())
    assert not seen["2"]["output"].any()


def test_a_user_hook_that_changes_the_output(watch: Any) -> None:
    """What the rest of the model gets is what is shown."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity())
    model[0].register_forward_hook(lambda m, i, o: o * 2)
    debugger = watch(model, "0", "1")
    model(X)
    seen = look(debugger)
    assert canonical(seen["0"]["output"]) == canonical(seen["1"]["output"])


def test_an_error_of_the_model_is_the_users(watch: Any) -> None:
    """It passes unchanged, and the next forward begins anew."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    debugger = watch(model, "0", "1")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(X)
    look(debugger)
    model[1] = nn.Identity()
    model(X + 1)
    assert canonical(look(debugger)) == canonical({"0": {"output": model[0](X + 1)}})
