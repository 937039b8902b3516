"""capture(): compared with hooks registered by hand, and without a trace in the model or in what it computes."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.innocence.conftest import generators, hooks_of
from tests.sameness import canonical
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import endoscope
from endoscope import capture
from endoscope.capturing.seen import NotCapturedError
from endoscope.errors import ConfigError, EndoscopeError, LayerNotFoundError
from endoscope.layers import get_layer_by_name, named_layers

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


# ---------------------------------------------------------------- models
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        y = x + self.act(self.norm(self.conv(x)))
        y *= scale
        return y


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)
        self.layer1, self.layer2 = nn.Sequential(Block(), Block()), nn.Sequential(Block())
        self.drop, self.head = nn.Dropout(0.3, inplace=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.stem(x)))
        x = self.layer2[0](x, scale=0.5)
        return self.head(self.drop(x.mean((2, 3))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        sequence, (hidden, _) = self.lstm(x)
        return self.head(sequence[:, -1] + hidden[0])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=x[..., 0] > 1).mean(1))


class Shared(nn.Module):
    """One linear layer under two names, which runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.again, self.unused = self.first, nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.first(self.first(x)).relu())


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet": (ResNet, lambda: torch.randn(2, 3, 8, 8)),
    "lstm": (Recurrent, lambda: torch.randn(3, 5, 6)),
    "transformer": (Attending, lambda: torch.randn(3, 5, 8)),
    "bert": (bert, lambda: torch.randint(20, (2, 7))),
    "shared": (Shared, lambda: torch.randn(3, 5)),
}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, batch = MODELS[request.param]
    return build(), batch()


def loss_of(outputs: Any) -> Tensor:
    tensor = outputs if isinstance(outputs, Tensor) else outputs["last_hidden_state"]
    return tensor.float().square().sum()


# ---------------------------------------------------------------- the reference: hooks registered by hand
def copied(value: Any, copy: Callable[[Tensor], Any] = lambda t: t.detach().clone()) -> Any:
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, dict):
        return type(value)({k: copied(v, copy) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(copied(v, copy) for v in value)
    return value


class ByHand:
    """Every call of every layer, recorded by the plainest hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.handles = []
        for layer in {m for _, m in named_layers(model)}:
            names = [n for n, m in named_layers(model) if m is layer]
            calls: list[dict[str, Any]] = []
            self.calls.update(dict.fromkeys(names, calls))
            self.handles += [
                layer.register_forward_pre_hook(
                    lambda m, args, kwargs, calls=calls: calls.append(
                        {"inputs": copied(args), "kwargs": copied(kwargs)}
                    ),
                    with_kwargs=True,
                ),
                layer.register_forward_hook(lambda m, args, output, calls=calls: self.ran(calls[-1], output)),
            ]

    def ran(self, call: dict[str, Any], output: Any) -> None:
        call["outputs"], call["gradients"] = copied(output), {}
        for t in [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]:
            t.register_hook(partial(self.gradient, call["gradients"], id(t)))
        call["places"] = copied(output, id)

    def gradient(self, gradients: dict[int, Tensor], at: int, gradient: Tensor) -> None:
        gradients[at] = gradient.clone()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def plain(value: Any) -> Any:
    """The tensors of a value with their places, whatever type of container holds them."""
    if isinstance(value, endoscope.values.DataclassValue):
        return {k: plain(value[k]) for k in value if value[k] is not None}  # a ModelOutput lists what it has
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return canonical(value) if isinstance(value, Tensor) or value is None else "?"


def filled(call: dict[str, Any]) -> Any:
    def fill(places: Any) -> Any:
        if isinstance(places, dict):
            return {k: fill(v) for k, v in places.items()}
        if isinstance(places, (list, tuple)):
            return [fill(v) for v in places]
        return call["gradients"].get(places)

    return fill(call["places"])


# ---------------------------------------------------------------- what is captured
def test_the_same_as_hooks_by_hand(case: tuple[nn.Module, Tensor]) -> None:
    model, x = case
    reference = ByHand(model)
    torch.manual_seed(5)
    loss_of(model(x)).backward()
    reference.remove()
    torch.manual_seed(5)
    if isinstance(model, ResNet):
        [m.reset_running_stats() for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    with capture(model, "*", gradients=True, calls="all") as seen:
        loss_of(model(x)).backward()
    with capture(model, "*", gradients=True) as last:
        torch.manual_seed(5)
        loss_of(model(x)).backward()

    ran = {name for name, calls in reference.calls.items() if calls}
    assert set(seen.outputs) == set(seen.inputs) == set(seen.kwargs) == set(last.outputs) == ran
    for name, calls in reference.calls.items():
        assert seen.calls[name] == last.calls[name] == len(calls)
    for name in ran:
        calls = reference.calls[name]
        for kind in ("outputs", "inputs", "kwargs"):
            expected = [plain(call[kind]) for call in calls]
            assert [plain(v) for v in getattr(seen, kind)[name]] == expected, (name, kind)
            assert plain(getattr(last, kind)[name]) == expected[-1], (name, kind)
        if any(call["gradients"] for call in calls):
            assert [plain(v) for v in seen.gradients[name]] == [plain(filled(call)) for call in calls], name
            assert plain(last.gradients[name]) == plain(filled(calls[-1])), name
        else:
            assert name not in seen.gradients


def test_a_later_operation_in_place_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(4, 3)
    expected = model[0](x).detach().clone()
    with capture(model, "*") as seen:
        model(x).mul_(0)
    assert torch.equal(seen.outputs["0"], expected)
    assert torch.equal(seen.inputs["1"][0], expected)
    assert torch.equal(seen.outputs["1"], expected.relu())
    assert not seen.outputs["0"].requires_grad


def test_containers_keep_their_structure() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor, *, mask: Tensor) -> Any:
            return {"a": (x * 2, [mask, "text"]), "b": None}

    model, x = Nested(), torch.ones(2, requires_grad=True)
    with capture(model, "", gradients=True) as seen:
        model(x, mask=torch.zeros(2))["a"][0].sum().backward()
    assert canonical(seen.outputs[""]) == canonical({"a": (torch.full((2,), 2.0), [torch.zeros(2), "text"]), "b": None})
    assert canonical(seen.inputs[""]) == canonical((torch.ones(2),))
    assert canonical(seen.kwargs[""]) == canonical({"mask": torch.zeros(2)})
    gradient = seen.gradients[""]["a"]
    assert canonical(gradient[0]) == canonical(torch.ones(2))
    assert gradient[1][0] is None


def test_a_layer_that_calls_itself_has_each_calls_own_inputs() -> None:
    class Halving(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if len(x) == 1 else self(x[: len(x) // 2]) + 1

    with capture(model := Halving(), "", calls="all") as seen:
        model(torch.zeros(8))
    assert seen.calls[""] == 4
    assert [len(args[0]) for args in seen.inputs[""]] == [1, 2, 4, 8]
    assert [float(output) for output in seen.outputs[""]] == [0, 1, 2, 3]


def test_a_forward_that_raised_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with capture(model, "*") as seen:
        for _ in range(100):
            with contextlib.suppress(RuntimeError):
                model(torch.ones(1, 4))
        model(torch.full((1, 3), 7.0))
    assert seen.calls["0"] == 1
    assert torch.equal(seen.inputs["0"][0], torch.full((1, 3), 7.0))


def test_several_steps_in_one_block() -> None:
    model = nn.Linear(2, 1)
    with capture(model, "", gradients=True) as seen:
        for k in range(3):
            (model(torch.full((1, 2), float(k))) * k).sum().backward()
    assert seen.calls[""] == 3
    assert seen.inputs[""][0].tolist() == [[2, 2]]
    assert seen.gradients[""].tolist() == [[2]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
    with mode(), capture(model, "*", gradients=True) as seen:
        expected = model(x)
    assert torch.equal(seen.outputs["1"], expected)
    assert not seen.outputs["1"].is_inference()
    (seen.outputs["1"].requires_grad_() * 2).sum().backward()  # as usable as any tensor
    with pytest.raises(NotCapturedError, match="no gradient reached the output of layer '1': its output needs no grad"):
        seen.gradients["1"]


def test_under_autocast() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), capture(model, "*", gradients=True) as seen:
        outputs = model(x)
        outputs.float().sum().backward()
    assert torch.equal(seen.outputs["1"], outputs)
    assert seen.outputs["0"].dtype is seen.gradients["0"].dtype is torch.bfloat16


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved"])
def test_checkpointing_counts_no_second_computation(reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.stem, self.again = nn.Linear(4, 4), again
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for _ in range(2):
                x = checkpoint(self.body, x, use_reentrant=reentrant) if self.again else self.body(x)
            return x

    def run(again: bool) -> Any:
        torch.manual_seed(0)
        model = Model(again)
        with capture(model, "*", gradients=True, calls="all") as seen:
            loss_of(model(torch.ones(2, 4, requires_grad=True))).backward()
        gradients = canonical([p.grad for p in model.parameters()])
        names = ["stem", "body", "body.0", "body.2"]
        return gradients, [
            (seen.calls[n], canonical(seen.outputs[n]), canonical(seen.inputs[n]), canonical(seen.gradients[n]))
            for n in names
            if n != "body" or not reentrant  # the output of a reentrant checkpoint comes from outside the layer
        ]

    assert run(True) == run(False)


def test_wrapped_models_have_the_names_of_the_plain_one() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    with capture(model, "*", "module.0") as seen:
        model(torch.ones(1, 2))
    assert list(seen.outputs) == ["0", "module.0"]


def test_ddp() -> None:
    """Real process groups are tested in tests/concurrency; here only the names matter."""
    model = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(model)
    model.module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with capture(model, "*", gradients=True) as seen:
        model.module(torch.ones(1, 2)).sum().backward()
    assert list(seen.gradients) == ["0", "1"]


# ---------------------------------------------------------------- without a trace
def test_the_same_bits(case: tuple[nn.Module, Tensor]) -> None:
    model, x = case
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def run(block: Any) -> dict[str, Any]:
        model.load_state_dict(start)
        model.zero_grad()
        torch.manual_seed(3)
        with block:
            outputs = model(x)
            loss_of(outputs).backward()
        return {
            "outputs": canonical(outputs),
            "gradients": canonical({n: p.grad for n, p in model.named_parameters()}),
            "buffers": canonical(dict(model.named_buffers())),
            "flags": [m.training for m in model.modules()],
            **generators(),
        }

    before = hooks_of(model)
    expected = run(contextlib.nullcontext())
    assert run(capture(model, "*", "", gradients=True, calls="all")) == expected
    assert run(contextlib.nullcontext()) == expected
    assert hooks_of(model) == before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("pattern", ["*", "encoder.layers.0", "encoder.layers.1.linear2", ""])
def test_the_fused_encoder_gives_the_same_bits(pattern: str, mode: Any) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    model = nn.Sequential()
    model.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model.eval()
    x = torch.randn(7, 33, 64)
    with mode():
        expected = model(x)
        with capture(model, pattern) as seen:
            assert torch.equal(model(x), expected)
    if pattern == "encoder.layers.0":
        assert torch.equal(seen.inputs["encoder.layers.0"][0], x)
    if pattern == "encoder.layers.1.linear2":
        with pytest.raises(NotCapturedError, match="fused kernel.*set_fastpath_enabled"):
            seen.outputs[pattern]


def test_keyword_arguments_of_an_encoder_layer() -> None:
    model, mask = Attending(), None
    with capture(model, "encoder.layers.0") as seen:
        model(torch.randn(3, 5, 8))
    assert {"src_mask", "is_causal", "src_key_padding_mask"} <= set(seen.kwargs["encoder.layers.0"])
    assert mask is seen.kwargs["encoder.layers.0"]["src_mask"]


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stop])
def test_the_hooks_go_however_the_block_ends(error: type[BaseException]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = hooks_of(model)
    with contextlib.suppress(error), capture(model, "*", gradients=True) as seen:
        outputs = model(torch.ones(1, 2))
        raise error
    assert hooks_of(model) == before
    assert not outputs._backward_hooks
    outputs.sum().backward()
    model(torch.ones(1, 2))
    assert seen.calls["0"] == 1
    assert list(seen.outputs) == ["0", "1"]
    assert "0" not in seen.gradients


def test_a_block_that_is_never_left_gives_the_hooks_back_when_it_is_dropped() -> None:
    model = nn.Linear(2, 2)
    before = hooks_of(model)
    block = capture(model, "")
    block.__enter__()
    assert hooks_of(model) != before
    del block
    gc.collect()
    assert hooks_of(model) == before


@pytest.mark.parametrize("first", [0, 1])
def test_two_captures_at_once(first: int) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = hooks_of(model)
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        stacks = [one, other]
        seen = [stack.enter_context(capture(model, "*", gradients=True)) for stack in stacks]
        model(torch.ones(1, 2)).sum().backward()
        stacks[first].close()
        model(torch.ones(1, 2)).sum().backward()
    assert hooks_of(model) == before
    assert [s.calls["0"] for s in seen] == ([1, 2] if first == 0 else [2, 1])
    assert canonical(seen[0].gradients["0"]) == canonical(seen[1].gradients["0"])


def test_a_value_that_cannot_be_copied_does_not_stop_the_forward() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            deep: Any = x
            for _ in range(100):
                deep = [deep]
            return deep

    model = Odd()
    with capture(model, "", gradients=True) as seen:
        model(torch.ones(1, requires_grad=True))
    assert seen.calls[""] == 1
    assert seen.inputs[""][0].tolist() == [1]
    with pytest.raises(NotCapturedError, match="the output of layer '' could not be copied: ValueError: value nested"):
        seen.outputs[""]
    with pytest.raises(NotCapturedError, match="no gradient reached"):
        seen.gradients[""]


def test_torch_func() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    parameters = dict(model.named_parameters())

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, x).sum()

    x = torch.ones(3, 2)
    expected = torch.func.grad(loss)(parameters, x)
    with capture(model, "*", gradients=True) as seen:
        assert canonical(torch.func.grad(loss)(parameters, x)) == canonical(expected)
    assert canonical(seen.outputs["1"]) == canonical(model(x).detach())


# ---------------------------------------------------------------- compiled
@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("how", ["torch.compile", "m.compile"])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_runs_uncompiled_and_says_so_once(how: str, caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            ran.append(1)
            return graph.forward(*args)

        return run

    model = Shared()
    if how == "torch.compile":
        call = torch.compile(model, backend=backend)
    else:
        model.compile(backend=backend)
        call = model
    x = torch.ones(1, 5)
    expected = call(x)
    with caplog.at_level(logging.WARNING, "endoscope"), capture(call, "*") as seen:
        assert torch.equal(call(x), expected)
        call(x)
    assert len(ran) == 1
    assert seen.calls["first"] == 6
    assert [r.getMessage() for r in caplog.records if r.name == "endoscope"] == [
        "the model is compiled: it runs uncompiled while it is captured"
    ]
    call(x)
    assert len(ran) == 2


# ---------------------------------------------------------------- reading
def test_a_block_of_three_lines_prints_as_a_table() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LSTM(8, 3), nn.Identity())
    model.unused = nn.Linear(1, 1)
    with capture(model, "0", "2", "unused") as seen:
        nn.Sequential(*model[:3])(torch.ones(2, 4))
    assert repr(seen) == (
        "layer   calls  output\n"
        "0           1  [2, 8]\n"
        "2           1  [2, 3] and 2 more\n"
        "unused      0  did not run"
    )  # fmt: skip


def test_a_long_table_is_cut_and_says_so() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(50)))
    with capture(model, "*") as seen:
        model(torch.ones(1))
    assert repr(seen).splitlines()[-1] == "... and 10 more layers"
    assert len(repr(seen).splitlines()) == 42


def test_no_hook_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of a device are waited for when a value is looked up, and the table needs none of them."""
    waited = []
    original = endoscope.capturing.snapshot.Snapshot.wait
    monkeypatch.setattr(endoscope.capturing.snapshot.Snapshot, "wait", lambda self: waited.append(1) or original(self))
    model = nn.Linear(2, 2)
    with capture(model, "", gradients=True) as seen:
        model(torch.ones(1, 2)).sum().backward()
    repr(seen)
    assert not waited
    assert seen.outputs[""].shape == seen.gradients[""].shape == (1, 2)
    assert len(waited) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), ConfigError, 'names no layers; add names or patterns such as "layer4.*", or "*" for all'),
        (("layr1.*",), LayerNotFoundError, "no layer matches 'layr1.*'; closest: 'layer1"),
        (("hed",), LayerNotFoundError, "no layer is called 'hed'; closest: 'head'"),
        ((["head"],), ConfigError, "must be text"),
    ],
)
def test_mistakes_are_found_when_the_block_begins(arguments: Any, error: type[Exception], message: str) -> None:
    model = ResNet()
    before = hooks_of(model)
    with pytest.raises(error) as caught, capture(model, *arguments):
        pass
    assert message in str(caught.value)
    assert hooks_of(model) == before


def test_other_mistakes() -> None:
    with pytest.raises(ConfigError, match="calls='every' is not a choice"), capture(ResNet(), "*", calls="every"):  # type: ignore[arg-type]
        pass
    with pytest.raises(ConfigError, match=r"model must be a torch\.nn\.Module, not int"), capture(3, "*"):  # type: ignore[arg-type]
        pass
    scripted = torch.jit.script(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="calls no hooks"), capture(scripted, ""):
        pass


def test_what_was_not_captured_is_a_key_error_that_says_why() -> None:
    model = ResNet()
    with capture(model, "stem", "layer1.*") as seen:
        pass
    for lookup, message in [
        (
            lambda: seen.outputs["layer1.0.cnv"],
            "layer 'layer1.0.cnv' is not watched by this capture; closest",
        ),
        (lambda: seen.calls["zzzz"], "layer 'zzzz' is not watched by this capture; watched: 'stem', 'layer1.0'"),
        (lambda: seen.outputs["stem"], "layer 'stem' did not run inside this capture"),
        (lambda: seen.gradients["stem"], "gradients were not captured; use capture(..., gradients=True)"),
    ]:
        with pytest.raises(NotCapturedError) as caught:
            lookup()
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, EndoscopeError)
    assert "stem" not in seen.outputs
    assert seen.outputs.get("stem") is None
    assert len(seen.outputs) == 0
    assert seen.calls["stem"] == 0
    assert get_layer_by_name(model, "stem")._forward_hooks == {}


def test_backward_after_the_block_says_where_it_belongs() -> None:
    model = nn.Linear(2, 2)
    with capture(model, "", gradients=True) as seen:
        outputs = model(torch.ones(1, 2))
    outputs.sum().backward()
    with pytest.raises(NotCapturedError, match=r"call backward\(\) inside the block"):
        seen.gradients[""]


def test_fifty_captures_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    before = hooks_of(model)
    for _ in range(50):
        with capture(model, "*", gradients=True) as seen:
            model(torch.ones(1, 2)).sum().backward()
    assert hooks_of(model) == before
    alive = weakref.ref(model[0])
    del model
    gc.collect()
    assert alive() is None
    assert seen.outputs["0"].shape == (1, 2)  # what was captured outlives the model
