"""What else a user does with a model (tracing, scripting, exporting, function transforms) works while it is watched."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Gradient, Output, node
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import BaseDebugger, EndoscopeError, SequentialDebugger, load_debug_outputs
from endoscope.capturing.window import MAX_CALLS_OF_A_PART
from endoscope.debuggers import FeatureMapDebugger
from endoscope.errors import ConfigError

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def net(*, inplace: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 3))


@pytest.fixture
def watched(folder: Path) -> Iterator[Any]:
    made: list[SequentialDebugger] = []

    def watch(model: nn.Module) -> SequentialDebugger:
        nodes = [
            node("output", Output, layer_name="*"),
            node("features", FeatureMapDebugger, layer_name="*"),
            node("gradient", Gradient, layer_name="*"),
        ]
        made.append(SequentialDebugger(nodes, model, output_dir=folder))
        made[-1].enabled = True
        return made[-1]

    yield watch
    for debugger in made:
        debugger.close()


def in_torchscript(function: Any, *args: Any) -> tuple[Any, list[str]]:
    """What torch.jit made, and what it warned of besides its own deprecation."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = function(*args)
    return made, [str(w.message) for w in seen if not issubclass(w.category, DeprecationWarning)]


# ---------------------------------------------------------------- turned into a graph
def traced(model: nn.Module) -> Any:
    return torch.jit.trace(model, (X,))


def exported(model: nn.Module) -> Any:
    return torch.export.export(model, (X,)).module()


def exported_strictly(model: nn.Module) -> Any:
    return torch.export.export(model, (X,), strict=True).module()


def symbolic(model: nn.Module) -> Any:
    return torch.fx.symbolic_trace(model)


def compiled(model: nn.Module) -> Any:
    made = torch.compile(model, backend="eager", fullgraph=True)
    made(X)
    return made


def text_of(graph: Any) -> str:
    if hasattr(graph, "inlined_graph"):
        return "\n".join(n.kind() for n in graph.inlined_graph.nodes())
    return "\n".join(f"{n.op} {n.target}" for n in graph.graph.nodes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [traced, exported, exported_strictly, symbolic])
def test_a_graph_made_meanwhile_holds_nothing_of_ours(make: Any, watched: Any, folder: Path) -> None:
    expected = make(net())
    debugger = watched(model := net())
    found = make(model)
    assert text_of(found) == text_of(expected)
    assert torch.equal(found(X), expected(X))
    model(X)
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    debugger.close()
    assert "failures" not in load_debug_outputs(folder).notes(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_warns_no_more_than_usual(watched: Any) -> None:
    expected = in_torchscript(traced, net())[1]
    watched(model := net())
    assert in_torchscript(traced, model)[1] == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripting_says_what_to_do(watched: Any) -> None:
    debugger = watched(model := net())
    with pytest.raises(EndoscopeError, match="enabled = False"):
        torch.jit.script(model)
    debugger.enabled = False
    assert torch.equal(torch.jit.script(model)(X), model(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [traced, torch.jit.script])
def test_a_scripted_model_is_refused_at_construction(make: Any, watched: Any) -> None:
    with pytest.raises(ConfigError, match="was made from"):
        watched(make(net()))


def test_compiling_a_whole_graph_meanwhile(watched: Any) -> None:
    debugger = watched(model := net())
    assert torch.equal(compiled(model)(X), net()(X))
    debugger.enabled = False
    assert torch.equal(compiled(model)(X), net()(X))


# ---------------------------------------------------------------- function transforms and autograd
def per_sample_gradients(model: nn.Module) -> dict[str, Tensor]:
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, X)


def test_function_transforms(watched: Any, folder: Path) -> None:
    """Computed rightly; what cannot be captured inside vmap is a failure that the record tells, not one of the loop."""
    expected = canonical(per_sample_gradients(net(inplace=False)))
    debugger = watched(model := net(inplace=False))
    assert canonical(per_sample_gradients(model)) == expected
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    debugger.close()
    record = load_debug_outputs(folder)
    told = {*record.list(0), *record.notes(0).get("failures", {}), *record.notes(0).get("absent", {})}
    assert told == {*debugger.debuggers}


def test_double_backward(watched: Any) -> None:
    def penalty(model: nn.Module) -> list[Any]:
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.square().sum() + model(x).sum()).backward()
        return canonical([p.grad for p in model.parameters()])

    expected = penalty(net())
    watched(model := net())
    assert penalty(model) == expected


def test_two_backwards_through_one_graph(watched: Any) -> None:
    def twice(model: nn.Module) -> list[Any]:
        outputs = model(X)
        outputs[0].sum().backward(retain_graph=True)
        outputs[1].sum().backward()
        return canonical([p.grad for p in model.parameters()])

    expected = twice(net())
    debugger = watched(model := net())
    assert twice(model) == expected
    seen = debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert seen["gradient/2"]["gradient"].tolist() == [[0, 0, 0], [1, 1, 1]]  # the last one


@pytest.mark.parametrize("several", [False, True], ids=["a tensor", "a tuple"])
def test_saving_an_output_gives_no_warning(several: bool, watched: Any, recwarn: pytest.WarningsRecorder) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x * 2, x * 3) if several else x * 2

    watched(model := nn.Sequential(nn.Linear(4, 4), Pair()))
    torch.save(model(X), io.BytesIO())
    assert not recwarn.list


class Tree(nn.Module):
    """Calls itself, as recursive networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.join = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        if depth == 0:
            return self.leaf(x)
        if depth < 0:
            raise ValueError
        return self.join(self(x, depth - 1) + self(x + 1, depth - 1))


def test_a_model_that_calls_itself(folder: Path) -> None:
    model = Tree()
    nodes = [node("output", Output, layer_name="leaf", calls="all"), node("join", Output, layer_name="join")]
    with SequentialDebugger(nodes, model, output_dir=folder) as debugger:
        debugger.enabled = True
        for idx in range(2):
            with pytest.raises(ValueError):
                model(X, -1)  # leaves its call in the middle: the next forward is a new one
            outputs = model(X)
            seen = debugger({"meta_info": {"idx": [2 * idx, 2 * idx + 1]}}, model)
            leaves = [model.leaf(X + k).tolist() for k in (0, 1, 1, 2)]
            assert [one["output"].tolist() for one in seen["output"]] == leaves
            assert torch.equal(seen["join"]["output"], outputs)
    assert load_debug_outputs(folder).notes(2) == {"calls": {"output": 4, "join": 3}, "forwards": {"model": 2}}


def test_of_several_forwards_the_last_is_kept_and_counted(watched: Any, folder: Path) -> None:
    debugger = watched(model := net())
    model(X)
    expected = model(X + 1)
    seen = debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert torch.equal(seen["output/2"]["output"], expected)
    model(X)
    debugger({"meta_info": {"idx": [2, 3]}}, model)
    debugger.close()
    assert load_debug_outputs(folder).notes(0)["forwards"] == {"model": 2}
    assert "forwards" not in load_debug_outputs(folder).notes(2)


def test_a_part_called_alone_for_ever_is_kept_in_bounds(folder: Path) -> None:
    model = net()
    nodes = [node("output", Output, layer_name="0", calls="all")]
    with SequentialDebugger(nodes, model, output_dir=folder) as debugger:
        debugger.enabled = True
        for k in range(MAX_CALLS_OF_A_PART + 5):
            model[0](X + k)
        seen = debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert len(seen["output"]) == MAX_CALLS_OF_A_PART
    assert torch.equal(seen["output"][0]["output"], model[0](X + 5))
    assert load_debug_outputs(folder).notes(0)["calls"] == {"output": MAX_CALLS_OF_A_PART + 5}


class Saliency(BaseDebugger):
    """Leaves the gradient switched on."""

    def __call__(self, datapoint: dict[str, Any], model: nn.Module) -> Any:
        torch.set_grad_enabled(True)
        x = datapoint["inputs"].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        return {"saliency": gradient}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_gradient_mode_is_put_back(mode: Any, folder: Path) -> None:
    model = net()
    with SequentialDebugger([node("saliency", Saliency)], model, output_dir=folder) as debugger, mode():
        debugger.enabled = True
        before = torch.is_grad_enabled()
        seen = debugger({"inputs": X, "outputs": model(X), "meta_info": {"idx": [0, 1]}}, model)
        assert torch.is_grad_enabled() == before
    assert seen["saliency"]["saliency"].shape == X.shape


def test_anomaly_mode_stays_as_it_was(watched: Any) -> None:
    debugger = watched(model := net())
    model(X).sum().backward()
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert not torch.is_anomaly_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert torch.get_default_dtype() is torch.float32
