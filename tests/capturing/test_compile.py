"""Compiled models: captured steps run uncompiled, the user is told, and afterwards the compiled code runs as before.

A backend that counts says what was compiled and what ran; layers are named as in the plain model.
"""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import opened
from tests.probes import Gradient, Output
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import SequentialDebugger

pytestmark = [  # torch's own, from its compiler
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

TOLD = "the model is compiled"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.stem(x))


class Backend:
    """Counts the graphs that were compiled, and how often they ran."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph.forward(*args)

        return run


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., SequentialDebugger]]:
    made: list[SequentialDebugger] = []

    def build(model: nn.Module, *layers: str, kind: type = Output, enabled: bool = True) -> SequentialDebugger:
        nodes = [
            {"name": n, "debugger_config": {"class": kind, "args": {"layer_name": n}}} for n in layers or ("a", "b")
        ]
        made.append(SequentialDebugger(nodes, model, output_dir=tmp_path / f"{len(made)}"))
        made[-1].enabled = enabled
        return made[-1]

    yield build
    for debugger in made:
        debugger.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the user has been told by the logger "endoscope"."""
    caplog.set_level(logging.DEBUG, "endoscope")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "endoscope"]


def look(debugger: SequentialDebugger, *, idx: int = 0) -> dict[str, Any]:
    return debugger({"meta_info": {"idx": [idx, idx + 1]}})


def notes(debugger: SequentialDebugger, tmp_path: Path, *, idx: int = 0, number: int = 0) -> dict[str, Any]:
    debugger.flush()
    return opened(tmp_path / f"{number}").notes(idx)


def layers_of(model: Net, x: Tensor) -> dict[str, Any]:
    """What layers a and b give, computed without the model."""
    a = nn.functional.linear(x, model.a.weight, model.a.bias)
    b = nn.functional.linear(a.relu(), model.b.weight, model.b.bias)
    return {"a": {"output": a}, "b": {"output": b}}


def compiled(model: nn.Module, how: str, backend: Any) -> nn.Module:
    if how == "torch.compile":
        return torch.compile(model, backend=backend)
    model.compile(backend=backend)
    return model


# ---------------------------------------------------------------- compiled, then watched
ORDERS = {
    "compiled, called, watched": ("debugger last", "compiled", True),
    "compiled, called, the original watched": ("debugger last", "original", True),
    "compiled, watched, called": ("debugger last", "compiled", False),
    "debugger made, compiled, called": ("debugger first", "original", True),
    "debugger made, compiled, not called": ("debugger first", "original", False),
}


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
@pytest.mark.parametrize("order", ORDERS)
def test_captured_and_compiled_again(how: str, order: str, backend: Backend, watch: Any, told: Any) -> None:
    made, given, called = ORDERS[order]
    model = net()
    expected = layers_of(model, X)
    if made == "debugger first":
        debugger = watch(model, enabled=False)
        call = compiled(model, how, backend)
    else:
        call = compiled(model, how, backend)
        debugger = watch(call if given == "compiled" else model, enabled=False)
    if called:
        call(X)
    before = backend.compiled, backend.ran
    debugger.enabled = True
    outputs = call(X)
    assert canonical(look(debugger)) == canonical(expected)
    assert canonical(outputs) == canonical(expected["b"]["output"])
    assert (backend.compiled, backend.ran) == before
    assert [m for m in told() if TOLD in m] == told() != []

    debugger.enabled = False
    call(X)
    call(X)
    assert (backend.compiled, backend.ran) == (1, before[1] + 2)
    debugger.enabled = True
    call(X)
    assert canonical(look(debugger, idx=2)) == canonical(expected)
    debugger.close()
    call(X)
    assert (backend.compiled, backend.ran) == (1, before[1] + 3)
    assert len(told()) == 1


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
def test_a_compiled_part_of_an_eager_model(how: str, backend: Backend, watch: Any, told: Any) -> None:
    inner = net()
    model = Outer(compiled(inner, how, backend))
    expected = model(X)
    debugger = watch(model, "stem", "inner", "inner.a", "inner.b")
    outputs = model(X)
    seen = look(debugger)
    assert canonical(outputs) == canonical(expected)
    assert canonical(seen["inner"]["output"]) == canonical(expected)
    assert canonical(seen["inner.a"]) == canonical(layers_of(inner, seen["stem"]["output"])["a"])
    assert backend.ran == 1
    assert len(told()) == 1
    debugger.close()
    model(X)
    assert (backend.compiled, backend.ran) == (1, 2)


def test_gradients_of_a_compiled_model(backend: Backend, watch: Any) -> None:
    def gradients(model: nn.Module) -> list[Any]:
        model.zero_grad()
        model(X).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain, call = net(), torch.compile(net(), backend=backend)
    gradients(call)
    debugger = watch(call, kind=Gradient)
    assert canonical(gradients(call)) == canonical(gradients(plain))
    assert [*look(debugger)] == ["a", "b"]


def test_with_aot_autograd(watch: Any) -> None:
    model = net()
    call = torch.compile(model, backend="aot_eager")
    expected = call(X)
    debugger = watch(call)
    assert canonical(call(X)) == canonical(expected)
    assert canonical(look(debugger)) == canonical(layers_of(model, X))
    debugger.close()
    assert canonical(call(X)) == canonical(expected)


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
def test_other_models_stay_compiled(how: str, watch: Any) -> None:
    mine, others = Backend(), Backend()
    model, other = compiled(net(), how, mine), compiled(net(), how, others)
    function = torch.compile(lambda x: other(x) + 1, backend=others)
    stance = repr(torch._dynamo.eval_frame._stance)
    model(X), other(X), function(X)
    ran = others.ran
    watch(model)
    model(X), other(X)
    assert others.ran == ran + 1
    function(X)
    assert others.ran > ran + 1
    assert mine.ran == 1
    assert repr(torch._dynamo.eval_frame._stance) == stance


def test_the_stance_would_be_noticed() -> None:
    before = repr(torch._dynamo.eval_frame._stance)
    with torch.compiler.set_stance("force_eager"):
        assert repr(torch._dynamo.eval_frame._stance) != before


def test_a_wrapper_is_found_when_gc_is_frozen(backend: Backend, watch: Any) -> None:
    """gc.freeze() is what people call before they fork; objects frozen are no longer listed by gc."""
    model = net()
    call = torch.compile(model, backend=backend)
    call(X)
    gc.freeze()
    try:
        debugger = watch(call)
        call(X)
        assert canonical(look(debugger)) == canonical(layers_of(model, X))
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
@pytest.mark.parametrize("first", [0, 1], ids=["first in, first out", "last in, first out"])
def test_two_debuggers_on_one_model(first: int, how: str, backend: Backend, watch: Any) -> None:
    """Whichever ends first: the other goes on capturing, and in the end the compiled code is back."""
    model = net()
    call = compiled(model, how, backend)
    call(X)
    debuggers = [watch(call), watch(call)]
    debuggers[first].enabled = False
    call(X)
    assert canonical(look(debuggers[1 - first])) == canonical(layers_of(model, X))
    debuggers[1 - first].enabled = False
    assert backend.ran == 1
    call(X)
    assert (backend.compiled, backend.ran) == (1, 2)


def test_a_dropped_debugger_gives_the_compiled_code_back(backend: Backend, tmp_path: Path) -> None:
    model = net()
    call = torch.compile(model, backend=backend)
    call(X)
    nodes = [{"name": "a", "debugger_config": Output("a")}]
    debugger = SequentialDebugger(nodes, call, output_dir=tmp_path / "dropped")
    debugger.enabled = True
    del debugger
    gc.collect()
    call(X)
    assert (backend.compiled, backend.ran) == (1, 2)


# ---------------------------------------------------------------- watched, then compiled
def captured_or_told(debugger: SequentialDebugger, model: Net, tmp_path: Path, told: Any) -> None:
    """Either the values are right, or the record and the log both say that compiled code kept them from us."""
    if seen := look(debugger):
        assert canonical(dict(seen)) == canonical(layers_of(model, X))
        return
    absent = notes(debugger, tmp_path)["absent"]
    assert all("compiled" in reason for reason in absent.values()), absent
    assert any("compiled" in message for message in told())


def test_a_first_debugger_that_came_before_any_compiling(tmp_path: Path) -> None:
    """In a process of its own: the compiler must not have been imported when the first one is enabled."""
    code = """
import sys, torch
from endoscope import ForwardDebugger, SequentialDebugger
class Output(ForwardDebugger):
    def process_forward(self, module, input, output):
        return {"output": output}
def watch(model, name):
    node = {"name": "x", "debugger_config": {"class": Output, "args": {"layer_name": "0"}}}
    debugger = SequentialDebugger([node], model, output_dir=sys.argv[1] + "/" + name)
    debugger.enabled = True
    return debugger
one, two = (torch.nn.Sequential(torch.nn.Linear(3, 3)) for _ in range(2))
a = watch(one, "a")
compiled = torch.compile(two, backend="eager")
compiled(torch.ones(1, 3))
b = watch(compiled, "b")
compiled(torch.ones(1, 3))
assert list(b({"meta_info": {"idx": 0}}, compiled)) == ["x"]
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


# ---------------------------------------------------------------- compiled while it is watched
@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
@pytest.mark.parametrize("kind", [Output, Gradient])
def test_compiling_meanwhile_gives_no_graph_of_ours(
    how: str, kind: type, watch: Any, told: Any, tmp_path: Path
) -> None:
    def graphs(model: nn.Module, debugger: SequentialDebugger | None) -> int:
        backend = Backend()
        call = compiled(model, how, backend)
        for k in range(4):
            if k == 2 and debugger is not None:
                debugger.enabled = False
            call(X).sum().backward()
        return backend.compiled

    expected = graphs(net(), None)
    torch._dynamo.reset()
    debugger = watch(model := net(), kind=kind)
    more = 1 if how == "m.compile" else 0  # dynamo compiles anew when a module's hooks have changed
    assert graphs(model, debugger) <= expected + more


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
def test_what_was_compiled_meanwhile_is_captured_or_told(
    how: str, backend: Backend, watch: Any, told: Any, tmp_path: Path
) -> None:
    debugger = watch(model := net())
    assert canonical(compiled(model, how, backend)(X)) == canonical(layers_of(model, X)["b"]["output"])
    captured_or_told(debugger, model, tmp_path, told)


# ---------------------------------------------------------------- compiled where we cannot reach it
def in_a_function(model: Net, backend: Backend) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: model(x), backend=backend)


def in_its_forward(model: Net, backend: Backend) -> Callable[[Tensor], Tensor]:
    model.forward = torch.compile(model.forward, backend=backend)  # type: ignore[method-assign]
    return model


def in_a_method(model: Net, backend: Backend) -> Callable[[Tensor], Tensor]:
    step = torch.compile(Net.forward, backend=backend)
    model.forward = lambda x: step(model, x)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("where", "called"),
    [(in_a_function, True), (in_its_forward, True), (in_a_method, True), (in_a_function, False)],
    ids=["in a function", "in its forward", "in a method", "in a function not called before"],
)
def test_nothing_is_captured_in_silence(
    where: Any, called: bool, backend: Backend, watch: Any, told: Any, tmp_path: Path
) -> None:
    model = net()
    call = where(model, backend)
    if called:
        call(X)
    debugger = watch(model)
    assert canonical(call(X)) == canonical(layers_of(model, X)["b"]["output"])
    captured_or_told(debugger, model, tmp_path, told)


def test_a_function_after_a_plain_call(backend: Backend, watch: Any, told: Any, tmp_path: Path) -> None:
    """The hooks have fired before, so that the compiled function cannot be told from no call at all: both are said."""
    model = net()
    call = in_a_function(model, backend)
    call(X)
    debugger = watch(model)
    model(X)
    look(debugger, idx=10)
    call(X)
    captured_or_told(debugger, model, tmp_path, told)


def test_an_eager_model_is_not_called_compiled(watch: Any, told: Any, tmp_path: Path) -> None:
    """The twin: a layer that did not run in a plain model has another reason, and nothing is logged."""
    model = net()
    model.unused = nn.Linear(1, 1)
    debugger = watch(model, "a", "unused")
    model(X)
    assert [*look(debugger)] == ["a"]
    (reason,) = notes(debugger, tmp_path)["absent"].values()
    assert reason.startswith("the layer did not run in this forward")
    assert "compiled" not in reason
    assert told() == []
