"""HookSet: attached and removed together, in the user's order, and inert in any copy of the model."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import _symbolic_trace
from torch.utils._python_dispatch import TorchDispatchMode

from endoscope.capturing.hooks import Hook, HookSet

X = torch.ones(2, 3)


class Calls:
    """Counts its calls; returns something, which must not reach the model."""

    def __init__(self, returns: Any = None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.returns = returns

    def __call__(self, *args: Any) -> Any:
        self.seen.append(args)
        return self.returns


def test_what_a_hook_is_called_with() -> None:
    hooks, before, after, layer = HookSet(), Calls(), Calls(), nn.Linear(3, 2)
    hooks.before_forward(layer, before)
    hooks.forward(layer, after)
    assert len(hooks) == 2
    output = layer(X)
    assert before.seen == [(layer, (X,))]
    ((module, input, seen),) = after.seen
    assert module is layer
    assert input[0] is X
    assert seen is output


def test_what_it_returns_is_ignored() -> None:
    hooks, layer = HookSet(), nn.Identity()
    hooks.before_forward(layer, Calls(returns=(torch.zeros(1),)))
    hooks.forward(layer, Calls(returns=torch.zeros(1)))
    assert layer(X) is X


def test_removed_twice() -> None:
    hooks, layer = HookSet(), nn.Identity()
    hooks.forward(layer, calls := Calls())
    hooks.before_forward(layer, calls)
    hooks.remove()
    hooks.remove()
    layer(X)
    assert calls.seen == []
    assert len(hooks) == len(layer._forward_hooks) == len(layer._forward_pre_hooks) == 0


def test_attached_again_after_removal() -> None:
    hooks, layer, calls = HookSet(), nn.Identity(), Calls()
    for _ in range(3):
        hooks.forward(layer, calls)
        layer(X)
        hooks.remove()
    layer(X)
    assert len(calls.seen) == 3


def test_the_users_hooks_keep_their_place() -> None:
    layer = nn.Identity()
    fired: list[str] = []
    layer.register_forward_pre_hook(lambda m, i: fired.append("first"))
    layer.register_forward_hook(lambda m, i, o: fired.append("after"))
    dicts = layer._forward_hooks, layer._forward_pre_hooks
    before = [list(d.items()) for d in dicts]
    hooks = HookSet()
    hooks.before_forward(layer, lambda m, i: fired.append("ours"))
    hooks.forward(layer, lambda m, i, o: fired.append("ours after"))
    layer.register_forward_pre_hook(lambda m, i: fired.append("second"))
    layer(X)
    assert fired == ["ours", "first", "second", "after", "ours after"]
    hooks.remove()
    assert layer._forward_hooks is dicts[0]
    assert layer._forward_pre_hooks is dicts[1]
    assert list(layer._forward_hooks.items()) == before[0]
    assert list(layer._forward_pre_hooks.items())[:1] == before[1]


def test_removed_inside_the_forward() -> None:
    """A debugger that is disabled by a layer: the forward goes on."""
    hooks, net = HookSet(), nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())
    calls = Calls()
    hooks.forward(net[0], calls)
    hooks.forward(net[1], lambda *_: hooks.remove())
    hooks.forward(net[2], calls)
    assert net(X) is X
    assert len(calls.seen) == 1


def test_the_module_is_not_kept_alive_by_its_hook() -> None:
    layer = nn.Identity()
    layer.register_forward_hook(Hook(layer, Calls()))
    alive = weakref.ref(layer)
    del layer
    gc.collect()
    assert alive() is None


# ---------------------------------------------------------------- copies
def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any) -> Any:
    torch.save(value, buffer := io.BytesIO())
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": pickled,
    "torch.save": saved,
    "deepcopy twice": lambda m: copy.deepcopy(copy.deepcopy(m)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copied_module_calls_nobody(how: str) -> None:
    hooks, layer, calls = HookSet(), nn.Linear(3, 3), Calls()
    hooks.before_forward(layer, calls)
    hooks.forward(layer, calls)
    made = COPIES[how](layer)
    assert torch.equal(made(X), nn.functional.linear(X, layer.weight, layer.bias))
    assert calls.seen == []
    layer(X)
    assert len(calls.seen) == 2


def test_a_plain_hook_is_copied_alive() -> None:
    """The twin: what Hook is for."""
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(count)
    count.called = 0  # type: ignore[attr-defined]
    for make in COPIES.values():
        make(layer)(X)
    assert count.called == len(COPIES)  # type: ignore[attr-defined]


def count(module: nn.Module, input: Any, output: Tensor) -> None:
    count.called += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", [h for h in COPIES if h != "copy"])
def test_a_copied_hook_is_inert(how: str) -> None:
    layer, calls = nn.Identity(), Calls()
    made = COPIES[how](Hook(layer, calls))
    assert made(layer, (X,)) is None
    assert made(layer, (X,), X) is None
    assert calls.seen == []


def test_a_hook_with_an_unpicklable_function_is_no_obstacle() -> None:
    layer = nn.Identity()
    layer.register_forward_hook(Hook(layer, lambda *_: None))
    assert isinstance(pickled(layer), nn.Identity)


def test_replicas_call_nobody() -> None:
    """DataParallel's replicas share the hooks of the module that they are made from."""
    hooks, layer, calls = HookSet(), nn.Linear(3, 3), Calls()
    hooks.forward(layer, calls)
    replica = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.weight, replica.bias = layer.weight, layer.bias
    replica(X)
    assert calls.seen == []


def test_nothing_is_compiled_so_nothing_runs_eagerly() -> None:
    hooks = HookSet()
    told: list[int] = []
    hooks.run_eagerly(nn.Linear(1, 1), lambda: told.append(1))
    hooks.remove()
    assert told == []


# ---------------------------------------------------------------- while something else is compiled
class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands for the modes under which torch.export runs a model."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("traced", ["no", "other thread", "compiling", "fx", "jit"])
def test_a_hook_is_silent_where_its_own_thread_is_traced(
    hidden: bool, traced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, seen = nn.Linear(2, 2), list[Any]()
    hooks = HookSet()
    hooks.forward(module, lambda *_: seen.append(1), hidden=hidden)
    if traced in ("other thread", "compiling"):
        monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # that of all threads
    if traced == "fx":
        monkeypatch.setattr(_symbolic_trace, "_is_fx_tracing_flag", True)
    with Elsewhere() if traced == "compiling" else contextlib.nullcontext():  # type: ignore[no-untyped-call]
        if traced == "jit":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.jit.trace(module, (torch.ones(1, 2),), check_trace=False)
        else:
            module(torch.ones(1, 2))
    hooks.remove()
    assert seen == ([1] if traced in ("no", "other thread") else [])
