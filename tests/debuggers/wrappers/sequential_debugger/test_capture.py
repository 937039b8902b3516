"""What a call captures: the right layer, the right forward, and nothing that happened later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.captures import opened

from endoscope import BackwardDebugger, BaseDebugger, ForwardDebugger, SequentialDebugger, load_debug_outputs
from endoscope.errors import DatapointError, DebuggerError

from .conftest import Output, Prediction, datapoint, node


def hooks_on(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_hooks_exist_only_while_enabled(make: Any, run: Any, model: torch.nn.Module) -> None:
    debugger = make(node("all", Output, layer_name="*"))
    assert hooks_on(model) == 3  # one per layer
    debugger.enabled = False
    assert hooks_on(model) == 0
    assert run(debugger, 0) == {}
    debugger.enabled = True
    debugger.enabled = True
    assert hooks_on(model) == 3
    debugger.close()
    assert hooks_on(model) == 0


def test_it_starts_disabled(model: torch.nn.Module) -> None:
    debugger = SequentialDebugger([node("all", Output, layer_name="*")], model)
    assert hooks_on(model) == 0
    assert debugger({"meta_info": "malformed, and nobody looks"}, model) == {}


def test_an_in_place_operation_after_the_layer_changes_nothing(make: Any, run: Any, model: Any) -> None:
    seen = run(make(), 0, x := torch.full((1, 4), -3.0))
    assert torch.equal(seen["first"]["output"], model[0](x))
    assert (seen["first"]["output"] < 0).any()  # the ReLU behind it would have made them zero


def test_a_later_step_changes_nothing(make: Any, run: Any) -> None:
    debugger = make()
    first = run(debugger, 0, torch.ones(1, 4))["first"]["output"]
    before = first.clone()
    run(debugger, 1, torch.zeros(1, 4))
    assert torch.equal(first, before)


def test_what_is_returned_is_what_is_read(make: Any, run: Any, tmp_path: Path) -> None:
    debugger = make(
        node("first", Output, layer_name="0"), node("post", Prediction), node("last", Output, layer_name="2")
    )
    seen = run(debugger, 5)
    assert debugger.flush() is True
    read = load_debug_outputs(tmp_path)[5]
    assert list(seen) == list(read) == ["first", "post", "last"]
    for name in seen:
        for key in seen[name]:
            assert torch.equal(seen[name][key], read[name][key])


class Sometimes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
        self.use_b = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(self.a(x))
        return self.b(x) if self.use_b else x


@pytest.fixture
def sometimes(tmp_path: Path) -> Any:
    model = Sometimes()
    debugger = SequentialDebugger([node("o", Output, layer_name="*")], model, output_dir=tmp_path)
    debugger.enabled = True
    yield model, debugger
    debugger.close()


def test_a_layer_that_did_not_run_is_absent_with_a_reason(sometimes: Any, tmp_path: Path) -> None:
    model, debugger = sometimes
    x = torch.ones(1, 2)
    debugger(datapoint(0, x, model(x)), model)
    model.use_b = False
    assert list(debugger(datapoint(1, x, model(x)), model)) == ["o/a"]
    debugger.flush()
    outputs: Any = load_debug_outputs(tmp_path)
    assert outputs.list(0) == ["o/a", "o/b"]
    assert outputs.notes(1)["absent"] == {"o/b": "the layer did not run in this forward (on this thread)"}
    with pytest.raises(KeyError, match="nothing from 'o/b': the layer did not run in this forward .*; it has"):
        outputs.read(1, "o/b")


def test_a_forward_nobody_asked_about_is_forgotten(sometimes: Any) -> None:
    model, debugger = sometimes
    model(torch.ones(1, 2))  # a warm-up, not followed by a call of the debugger
    model.use_b = False
    x = torch.zeros(1, 2)
    seen = debugger(datapoint(0, x, model(x)), model)
    assert list(seen) == ["o/a"]
    assert torch.equal(seen["o/a"]["output"], model.a(model.a(x)))


def test_ctrl_c_in_a_forward_leaves_nothing_behind(sometimes: Any, tmp_path: Path) -> None:
    model, debugger = sometimes
    x = torch.ones(1, 2)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for where in (model.b, model):  # inside the forward, and in a hook of the model after it
        hook = where.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(x)
        hook.remove()
    model.use_b = False
    assert list(debugger(datapoint(0, x, model(x)), model)) == ["o/a"]
    debugger.flush()
    outputs: Any = load_debug_outputs(tmp_path)
    assert outputs.notes(0)["calls"] == {"o/a": 2}
    assert outputs.notes(0)["forwards"] == {"model": 3}
    assert "o/b" in outputs.notes(0)["absent"]


def test_called_without_a_forward(make: Any, run: Any, model: Any, tmp_path: Path) -> None:
    debugger = make()
    run(debugger, 0)
    assert debugger(datapoint(1, None, None), model) == {}
    debugger.flush()
    absent = load_debug_outputs(tmp_path).notes(1)["absent"]  # type: ignore[attr-defined]
    assert absent["first"].startswith("the model was not called since the last datapoint (on this thread")


def test_several_calls_keep_the_last_and_say_how_many(sometimes: Any, tmp_path: Path) -> None:
    model, debugger = sometimes
    x = torch.ones(1, 2)
    seen = debugger(datapoint(0, x, model(x)), model)
    assert torch.equal(seen["o/a"]["output"], model.a(model.a(x)))
    debugger.flush()
    assert load_debug_outputs(tmp_path).notes(0)["calls"] == {"o/a": 2}  # type: ignore[attr-defined]


class SecondTime(ForwardDebugger):
    """Returns nothing, or raises, in the second of two calls; or raises in the first."""

    def __init__(self, layer_name: str, what: str) -> None:
        super().__init__(layer_name)
        self.what, self.seen = what, 0

    def process_forward(self, module: Any, input: Any, output: Any) -> Any:
        self.seen += 1
        if self.seen == 1 and self.what == "raises at once":
            raise ValueError("the first time")
        if self.seen == 2 and self.what == "raises":
            raise ValueError("the second time")
        return None if self.seen == 2 else {"output": output}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("returns nothing", {"absent": {"o": "the debugger returned nothing"}}),
        ("raises", {"failures": {"o": "ValueError: the second time"}}),
    ],
)
def test_a_last_call_that_gave_nothing_is_not_the_one_before(what: str, said: Any, tmp_path: Path) -> None:
    model = Sometimes()
    debugger = SequentialDebugger([node("o", SecondTime, layer_name="a", what=what)], model, output_dir=tmp_path)
    debugger.enabled = True
    x = torch.ones(1, 2)
    assert debugger(datapoint(0, x, model(x)), model) == {}
    debugger.close()
    assert opened(tmp_path).notes(0) == {**said, "calls": {"o": 2}}


@pytest.mark.parametrize("what", ["raises", "raises at once"])
def test_a_call_is_counted_though_its_failure_was_raised(what: str, tmp_path: Path) -> None:
    model = Sometimes()
    nodes = [node("o", SecondTime, layer_name="a", what=what)]
    debugger = SequentialDebugger(nodes, model, output_dir=tmp_path, on_error="raise")
    debugger.enabled = True
    x = torch.ones(1, 2)
    with pytest.raises(DebuggerError, match="the second time" if what == "raises" else "the first time"):
        model(x)
    if what == "raises at once":
        model.a(x)  # the user went on by himself
    debugger(datapoint(0, x, None), model)
    debugger.close()
    assert opened(tmp_path).notes(0)["calls"] == {"o": 2}


def test_all_calls_are_kept_when_asked_for(tmp_path: Path) -> None:
    model = Sometimes()
    debugger = SequentialDebugger([node("o", Output, layer_name="a", calls="all")], model, output_dir=tmp_path)
    debugger.enabled = True
    x = torch.ones(1, 2)
    seen = debugger(datapoint(0, x, model(x)), model)
    expected = [model.a(x), model.a(model.a(x))]
    assert all(torch.equal(s["output"], e) for s, e in zip(seen["o"], expected, strict=True))
    debugger.close()
    assert len(load_debug_outputs(tmp_path)[0]["o"]) == 2


class Gradient(BackwardDebugger):
    def process_backward(self, module: torch.nn.Module, grad_output: Any) -> Any:
        return {"gradient": grad_output}


def test_gradients_through_an_in_place_operation(make: Any, model: Any) -> None:
    debugger = make(node("g", Gradient, layer_name="0"), node("end", Gradient, layer_name="2"))
    x = torch.randn(2, 4)
    hidden = model[0](x)  # by hand, without the in-place ReLU
    hidden.retain_grad()
    out = model[2](hidden.relu())
    out.retain_grad()
    out.square().sum().backward()
    model.zero_grad()
    mine = model(x)
    mine.square().sum().backward()
    seen = debugger(datapoint([0, 1], x, mine), model)
    assert torch.equal(seen["g"]["gradient"], hidden.grad)
    assert torch.equal(seen["end"]["gradient"], out.grad)


def test_gradients_that_never_come_have_a_reason(make: Any, run: Any, model: Any, tmp_path: Path) -> None:
    debugger = make(node("g", Gradient, layer_name="0"))
    run(debugger, 0)  # under no_grad
    x = torch.ones(1, 4)
    debugger(datapoint(1, x, model(x)), model)  # before backward
    debugger.flush()
    outputs: Any = load_debug_outputs(tmp_path)
    assert "needs no gradient" in outputs.notes(0)["absent"]["g"]
    assert "call it after loss.backward()" in outputs.notes(1)["absent"]["g"]


def test_gradients_of_a_layer_with_several_outputs(tmp_path: Path) -> None:
    lstm = torch.nn.LSTM(3, 4, batch_first=True)
    model = torch.nn.ModuleDict({"lstm": lstm})
    debugger = SequentialDebugger([node("g", Gradient, layer_name="lstm")], model, output_dir=tmp_path)
    debugger.enabled = True
    x = torch.randn(1, 5, 3)
    out, (h, _c) = lstm(x)
    (out.sum() + 2 * h.sum()).backward()
    gradient, (gh, gc) = debugger(datapoint(0, x, out), model)["g"]["gradient"]
    assert gradient.shape == out.shape
    assert torch.equal(gh, torch.full_like(h, 2))
    assert gc is None or not gc.any()
    debugger.close()


@pytest.mark.parametrize(
    "idx", [7, [7], (7,), torch.tensor(7), torch.tensor([7]), np.int64(7), np.array([7]), [torch.tensor(7)]]
)
def test_forms_of_one_index(make: Any, run: Any, tmp_path: Path, idx: Any) -> None:
    debugger = make()
    run(debugger, idx, torch.ones(1, 4))
    debugger.flush()
    assert list(load_debug_outputs(tmp_path)) == [7]


@pytest.mark.parametrize(
    "idx", [[3, 9, 4], torch.tensor([3, 9, 4]), np.array([3, 9, 4]), (np.int32(3), 9, torch.tensor(4))]
)
def test_forms_of_a_batch(make: Any, run: Any, tmp_path: Path, idx: Any) -> None:
    debugger = make()
    seen = run(debugger, idx, torch.arange(12.0).reshape(3, 4))
    debugger.flush()
    outputs = load_debug_outputs(tmp_path)
    assert list(outputs) == [3, 4, 9]
    for row, i in enumerate([3, 9, 4]):
        assert torch.equal(outputs[i]["first"]["output"], seen["first"]["output"][row : row + 1])


@pytest.mark.parametrize(
    ("malformed", "message"),
    [
        ({}, "meta_info is NoneType"),
        ({"meta_info": {"id": 3}}, r"meta_info has \['id'\]"),
        ({"meta_info": {"idx": "seven"}}, "meta_info.idx holds str 'seven'"),
        ({"meta_info": {"idx": 1.5}}, "meta_info.idx holds float"),
        ({"meta_info": {"idx": True}}, "meta_info.idx holds bool"),
        ({"meta_info": {"idx": []}}, "meta_info.idx is empty"),
        ({"meta_info": {"idx": 1 << 70}}, "does not fit into 64 bits"),
        ("datapoint", "a datapoint must be a dict, not str"),
    ],
)
def test_a_malformed_index_is_an_error_at_the_first_call(make: Any, model: Any, malformed: Any, message: str) -> None:
    with pytest.raises(DatapointError, match=message):
        make()(malformed, model)


def test_a_batch_is_handed_out_as_batches_of_one_would_be(make: Any, run: Any, tmp_path: Path) -> None:
    from endoscope.debuggers import ActivationStatsDebugger, FeatureMapDebugger

    xs = torch.randn(5, 4)
    nodes = node("map", FeatureMapDebugger, layer_name="*"), node("stats", ActivationStatsDebugger, layer_name="0")
    singly, batched = make(*nodes, output_dir=tmp_path / "one"), None
    for i in range(5):
        run(singly, i, xs[i : i + 1])
    singly.close()
    batched = make(*nodes, output_dir=tmp_path / "five")
    run(batched, list(range(5)), xs)
    batched.close()
    one, five = load_debug_outputs(tmp_path / "one"), load_debug_outputs(tmp_path / "five")
    for i in range(5):
        for name in one[i]:
            same(one[i][name], five[i][name])


def same(a: Any, b: Any) -> None:
    """Equal structure; numbers to float32 accuracy, since a batch may be multiplied in another order than one row."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, torch.Tensor):
        assert a.shape == b.shape
        assert torch.allclose(a, b, atol=1e-6)
    elif isinstance(a, (float, list)):
        assert a == pytest.approx(b, abs=1e-5, nan_ok=True)
    else:
        assert a == b


def test_a_value_of_the_whole_batch(make: Any, run: Any, tmp_path: Path) -> None:
    from endoscope import per_datapoint, whole_batch

    class Marked(BaseDebugger):
        def __call__(self, datapoint: Any, model: Any) -> Any:
            table = torch.arange(4).reshape(2, 2)
            return {"cut": table, "whole": whole_batch(table), "each": per_datapoint(["a", "b"]), "shared": [1, 2]}

    debugger = make(node("m", Marked))
    run(debugger, [0, 1])
    debugger.flush()
    got = load_debug_outputs(tmp_path)[1]["m"]
    assert torch.equal(got["cut"], torch.tensor([[2, 3]]))
    assert torch.equal(got["whole"], torch.tensor([[0, 1], [2, 3]]))
    assert (got["each"], got["shared"]) == ("b", [1, 2])


def test_a_layer_whose_first_dimension_is_not_the_batch(tmp_path: Path) -> None:
    from endoscope.debuggers import FeatureMapDebugger

    lstm = torch.nn.LSTM(3, 4)  # (time, batch, features)
    model = torch.nn.ModuleDict({"lstm": lstm})
    nodes = [node("map", FeatureMapDebugger, layer_name="lstm")]
    with SequentialDebugger(nodes, model, output_dir=tmp_path) as debugger:
        debugger.enabled = True
        out, _ = lstm(x := torch.randn(5, 2, 3))
        debugger(datapoint([0, 1], x, out), model)
    got = load_debug_outputs(tmp_path)[1]["map"]
    assert torch.equal(got["feature_map"], out)  # nothing is cut, and nothing is lost
    assert got["stats"]["mean"] == pytest.approx(out.mean((1, 2)).tolist(), abs=1e-6)


def test_outputs_computed_elsewhere(make: Any, tmp_path: Path) -> None:
    debugger = make()
    mine = torch.ones(1, 2)
    debugger.add_to_buffer({"elsewhere": {"value": mine}}, datapoint(4, None, None))
    mine.zero_()
    debugger.flush()
    assert torch.equal(load_debug_outputs(tmp_path)[4]["elsewhere"]["value"], torch.ones(1, 2))


def test_a_debugger_that_returns_nothing(make: Any, run: Any, tmp_path: Path) -> None:
    class Silent(ForwardDebugger):
        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            return None

    debugger = make(node("silent", Silent, layer_name="0"))
    assert run(debugger, 0) == {}
    debugger.flush()
    assert load_debug_outputs(tmp_path).notes(0)["absent"] == {"silent": "the debugger returned nothing"}  # type: ignore[attr-defined]
