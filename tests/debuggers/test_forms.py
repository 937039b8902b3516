"""What is known of debuggers' functions without calling them: that they draw no random numbers, and their forms."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from endoscope import BackwardDebugger, ForwardDebugger, SequentialDebugger, load_debug_outputs
from endoscope.capturing import guard
from endoscope.capturing import session as captures
from endoscope.debuggers import FeatureMapDebugger
from endoscope.debuggers.forms import form_of, may_draw


class Keeps(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": output, "input": input}


class Computes(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": torch.rand(2)}


class OfTheReadyMade(FeatureMapDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return super().process_forward(module, input, output + torch.rand(1))


class KeepsGradients(BackwardDebugger):
    def process_backward(self, module: nn.Module, grad_output: Any) -> Any:
        kept = [grad_output, 1]
        return (kept, "text")


def _nothing(*args: Any) -> Any:
    return None


def _first(module: Any, input: Any, output: Any) -> Any:
    return {"output": output}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        torch.rand(1)
        return function(*args)

    return call


drawn = torch.rand


class LooksLikeAMethod:
    """Hands every question on to the method that it wraps, as some decorators do."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __call__(self, *args: Any) -> Any:
        return self._method(*args), torch.rand(1)


class DrawsOnCall:
    def __call__(self, *args: Any) -> Any:
        return torch.rand(1)


RUNS_NOTHING = {
    "keeps the output": Keeps("a").process_forward,
    "keeps gradients": KeepsGradients("a").process_backward,
    "returns nothing": _nothing,
    "a function": _first,
    "a lambda": lambda module, input, output: [output],
}
MAY_RUN_ANYTHING = {
    "a call": Computes("a").process_forward,
    "an attribute": lambda module, input, output: {"weight": module.weight},  # of a parametrised module
    "an item": lambda module, input, output: {"first": output[0]},
    "an operator": lambda module, input, output: {"sum": output + 1},
    "a comparison": lambda module, input, output: {"same": output == input},
    "a condition": lambda module, input, output: {"some": 1 if output else 2},
    "text": lambda module, input, output: {"text": f"{output}"},
    "unpacking": lambda module, input, output: {"all": [*output]},
    "unpacking a dict": lambda module, input, output: {**output},
    "a loop": lambda module, input, output: [x for x in output],  # noqa: C416
    "a set": lambda module, input, output: {output},
    "a generator": lambda module, input, output: (yield output),
    "a name from outside": lambda module, input, output: drawn,  # harmless, and not looked into
    "a decorated function": wrapped(_first),
    "an object": DrawsOnCall(),
    "a builtin": torch.rand,
    "what looks like a method": LooksLikeAMethod(Keeps("a").process_forward),
}


@pytest.mark.parametrize("what", RUNS_NOTHING)
def test_a_function_that_only_hands_on_what_it_is_given_draws_nothing(what: str) -> None:
    assert not may_draw(Keeps("a"), RUNS_NOTHING[what])


@pytest.mark.parametrize("what", MAY_RUN_ANYTHING)
def test_any_other_may(what: str) -> None:
    assert may_draw(Keeps("a"), MAY_RUN_ANYTHING[what])


@pytest.mark.parametrize("kind", [Keeps, KeepsGradients])
def test_a_function_exchanged_meanwhile_leaves_the_users_numbers(kind: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = SequentialDebugger([{"name": "x", "debugger_config": kind("0")}], model, output_dir=tmp_path)
    debugger.enabled = True
    name = "process_forward" if kind is Keeps else "process_backward"
    setattr(debugger.debuggers["x"], name, lambda *args: {"drawn": torch.rand(2)})
    before = torch.get_rng_state()
    model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    debugger.close()


def test_the_ready_made_draw_nothing_but_a_users_subclass_may() -> None:
    ready, theirs = FeatureMapDebugger("a"), OfTheReadyMade("a")
    assert not may_draw(ready, ready.hooked)
    assert may_draw(theirs, theirs.hooked)
    ready.process_forward = Computes("a").process_forward  # type: ignore[method-assign]
    assert may_draw(ready, ready.hooked)


# ---------------------------------------------------------------- forms
def _with_constants(module: Any, input: Any, output: Any) -> Any:
    kept = output
    return {"kind": "map", "feature_map": kept, "version": 2, "none": None}


FORMS = {
    "a function": _first,
    "a method": type("Keep", (Keeps,), {"process_forward": lambda self, module, input, output: {"map": output}})(
        "a"
    ).process_forward,
    "constants": _with_constants,
    "a lambda": lambda module, input, output: {"map": output},
    "the feature map": FeatureMapDebugger("a").hooked,
}


def measured(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return {**function(*args), "norm": float(args[-1].norm())}

    return call


def _unbound(module: Any, input: Any, output: Any) -> Any:
    kept = kept  # type: ignore[has-type]  # noqa: F821
    return {"map": kept}


NO_FORMS = {
    **MAY_RUN_ANYTHING,
    "a wrapped ready-made one": measured(FeatureMapDebugger("a").hooked),
    "a proxy of a ready-made one": LooksLikeAMethod(FeatureMapDebugger("a").hooked),
    "a mock": Mock(side_effect=lambda module, input, output: {"map": output, "mean": float(output.mean())}),
    "a failing mock": Mock(side_effect=ValueError("no")),
    "a name without a value": _unbound,
    "a default": lambda module, input, output, step=0: {"map": output, "step": step},
    "the input, too": Keeps("a").process_forward,
    "the module": lambda module, input, output: {"module": module, "output": output},
    "nothing": _nothing,
    "no dict": lambda module, input, output: output,
    "a list": lambda module, input, output: [output],
    "an empty dict": lambda module, input, output: {},
    "without the output": lambda module, input, output: {"kind": "map"},
    "twice": lambda module, input, output: {"a": output, "b": output},
    "deeper": lambda module, input, output: {"a": {"b": output}},
    "beside a list": lambda module, input, output: {"a": output, "b": [1]},
    "another key": lambda module, input, output: {1: output},
    "other arguments": lambda output: {"map": output},
    "a user's subclass": OfTheReadyMade("a").hooked,
}


@pytest.mark.parametrize("what", FORMS)
def test_what_a_function_makes_of_an_output_is_known_without_calling_it(what: str) -> None:
    form = form_of(FORMS[what])
    assert form is not None
    output = torch.rand(2, 3)
    filled, returned = form.filled(output), FORMS[what](nn.Identity(), (), output)
    assert [*filled] == [*returned]
    assert all(filled[name] is returned[name] for name in returned)


@pytest.mark.parametrize("what", NO_FORMS)
def test_of_any_other_function_it_is_not(what: str) -> None:
    assert form_of(NO_FORMS[what]) is None


def test_the_same_dict_has_the_same_form_and_another_one_has_not() -> None:
    def returning(**more: Any) -> Any:
        return FunctionType(_made("lambda module, input, output: " + repr({**more}).replace("'@'", "output")), {})

    one, again = (form_of(returning(output="@", scale=1)) for _ in range(2))
    assert one is not None
    assert one is again
    others = [{"output": "@", "scale": True}, {"output": "@", "scale": 1.0}, {"scale": 1, "output": "@"}]
    others += [{"scale": "@", "output": 1}, {"output": "@", "scale": 0.0}]
    forms = [form_of(returning(**other)) for other in others]
    assert len({*map(id, [one, *forms])}) == 1 + len(others)
    for other, form in zip(others, forms, strict=True):
        assert form is not None
        filled = form.filled(torch.ones(1))
        assert [*filled] == [*other]
        assert [type(v) for v in filled.values()] == [torch.Tensor if v == "@" else type(v) for v in other.values()]
    assert _scale("0.0") == "0.0"
    assert _scale("-0.0") == "-0.0"


def _scale(text: str) -> str:
    code = _made(f"lambda module, input, output: {{'output': output, 'scale': {text}}}")
    form = form_of(FunctionType(code, {}))
    assert form is not None
    return repr(form.filled(torch.ones(1))["scale"])


def _made(text: str) -> CodeType:
    return next(c for c in compile(text, "debugger", "eval").co_consts if isinstance(c, CodeType))


@pytest.mark.parametrize("tool", ["trace", "profile"])
def test_a_tracer_sees_every_call(tool: str) -> None:
    switch, before = getattr(sys, f"set{tool}"), getattr(sys, f"get{tool}")()
    switch(lambda *_: None)
    try:
        assert form_of(_first) is None
    finally:
        switch(before)


@pytest.mark.parametrize("typo", [False, True])
def test_a_debugger_that_fails_is_told_as_ever(typo: bool, tmp_path: Path) -> None:
    kind = type("Wrong", (Keep,), {"process_forward": _unbound if typo else lambda self: {"map": self}})
    outputs = captured(nn.Sequential(nn.Identity()), ["0"], tmp_path, kind)
    assert "Error" in outputs.notes(0)["failures"]["0"]


def test_code_that_is_exchanged_is_called(tmp_path: Path) -> None:
    class Edited(Keep):
        def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
            return {"map": output}

    def edited(self: Any, module: nn.Module, input: Any, output: Any) -> Any:
        return {"map": output * 10}

    model = nn.Sequential(nn.Identity())
    with SequentialDebugger([{"name": "x", "debugger_config": Edited("0")}], model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        for idx in range(2):
            model(torch.ones(1, 1))
            debugger({"meta_info": {"idx": idx}}, model)
            Edited.process_forward.__code__ = edited.__code__
    outputs = load_debug_outputs(tmp_path)
    assert [outputs[idx]["x"]["map"].item() for idx in range(2)] == [1.0, 10.0]


def test_an_interrupted_copy_is_a_call_of_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(captures, "owned_in", interrupt)
    model = nn.Sequential(nn.Identity())
    with SequentialDebugger([{"name": "x", "debugger_config": Keep("0")}], model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 1))
        debugger({"meta_info": {"idx": 0}}, model)
    assert load_debug_outputs(tmp_path).notes(0)["absent"]["x"].startswith("the layer did not run")


def test_attaching_asks_nothing_of_a_default_device(tmp_path: Path) -> None:
    torch.set_default_device("meta")
    try:
        form = form_of(_first)
    finally:
        torch.set_default_device(None)
    assert form is not None and form.filled(torch.ones(1)) == {"output": torch.ones(1)}


class Keep(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"map": output, "about": "text"}


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.T,
    "double": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "complex": lambda x: x.cfloat(),
    "conjugated": lambda x: x.cfloat().conj(),
    "negated": lambda x: x.cfloat().conj().imag,
    "bool": lambda x: x > 0,
    "empty": lambda x: x[:0],
    "without dimensions": lambda x: x.sum(),
    "odd bytes": lambda x: (x > 0)[:, :3],
    "sparse": lambda x: x.to_sparse(),
    "a parameter": lambda x: nn.Parameter(x),
    "a tuple": lambda x: (x, x + 1),
    "text": lambda x: "text",
}


class Gives(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: torch.Tensor) -> Any:
        return OUTPUTS[self.what](x)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", [Keep, FeatureMapDebugger])
@pytest.mark.parametrize("what", OUTPUTS)
def test_the_pages_are_the_same_byte_for_byte(
    what: str, kind: Any, batch: int, grad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(Gives(what))
    xs = [torch.rand(batch, 4, requires_grad=grad) for _ in range(3)]

    def written(folder: Path) -> dict[str, bytes]:
        with SequentialDebugger([{"name": "x", "debugger_config": kind("0")}], model, output_dir=folder) as debugger:
            debugger.enabled = True
            for n, x in enumerate(xs):
                model(x)
                debugger({"meta_info": {"idx": [*range(n * batch, (n + 1) * batch)]}}, model)
            assert debugger.flush()
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    by_form = written(tmp_path / "form")
    monkeypatch.setattr(captures, "form_of", lambda function: None)
    assert by_form == written(tmp_path / "called")
    assert len(by_form) == 3


def captured(model: nn.Module, layers: list[str], tmp_path: Path, kind: Any = Keep) -> Any:
    nodes = [{"name": layer, "debugger_config": kind(layer)} for layer in layers]
    with SequentialDebugger(nodes, model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        model(torch.full((1, 2), -1.0))
        debugger({"meta_info": {"idx": 0}}, model)
    return load_debug_outputs(tmp_path)


def test_what_comes_later_in_place_does_not_change_it(tmp_path: Path) -> None:
    outputs = captured(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), ["0", "1"], tmp_path)
    assert outputs[0]["0"]["map"].tolist() == [[-1.0, -1.0]]
    assert outputs[0]["1"]["map"].tolist() == [[0.0, 0.0]]


def test_debuggers_stand_in_the_order_of_the_config(tmp_path: Path) -> None:
    outputs = captured(nn.Sequential(nn.Identity(), nn.ReLU()), ["1", "0"], tmp_path)
    assert [*outputs[0]] == ["1", "0"]


def test_a_layer_called_twice_keeps_the_last_call(tmp_path: Path) -> None:
    shared = nn.ReLU()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return shared(shared(x) + 3)

    outputs = captured(Twice(), ["shared"], tmp_path)
    assert outputs[0]["shared"]["map"].tolist() == [[3.0, 3.0]]
    assert outputs.notes(0)["calls"] == {"shared": 2}


def test_an_output_that_cannot_be_copied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(captures, "owned_in", fail)
    monkeypatch.setattr(guard, "owned", fail)
    outputs = captured(nn.Sequential(nn.Identity()), ["0"], tmp_path)
    assert "no memory" in outputs.notes(0)["failures"]["0"]


def test_inside_a_transform_the_tensor_in_it_is_kept(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)

    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(self.layer)(x)

    outputs = captured(Mapped(), ["layer"], tmp_path)
    assert torch.equal(outputs[0]["layer"]["map"], layer(torch.full((1, 2), -1.0)).detach())


@pytest.mark.parametrize("kind", [Keep, FeatureMapDebugger])
def test_the_hook_copies_without_a_call(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.Guard, "call", lambda *_: "called")
    outputs = captured(nn.Sequential(nn.Identity()), ["0"], tmp_path, kind)
    assert outputs.notes(0) == {}
    assert -1.0 in next(iter(v for v in outputs[0]["0"].values() if isinstance(v, torch.Tensor)))
