"""A copy of a model that is being debugged is a plain model: it runs, it can be saved, and it feeds no debugger."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.probes import Gradient, Output, node
from tests.sameness import canonical
from tests.warm import Say, WarmProcess
from torch import nn
from torch.optim.swa_utils import AveragedModel

from endoscope import SequentialDebugger

from .conftest import hooks_of


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def saved_whole(model: nn.Module) -> nn.Module:
    torch.save(model, buffer := io.BytesIO())
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": saved_whole,
    "AveragedModel": lambda m: AveragedModel(m).module,
    "deepcopy of a pickle": lambda m: copy.deepcopy(pickle.loads(pickle.dumps(m))),
}
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    return net()


@pytest.fixture
def debugger(model: nn.Module, folder: Path) -> Iterator[SequentialDebugger]:
    made = SequentialDebugger(
        [node("output", Output, layer_name="*"), node("gradient", Gradient, layer_name="*")], model, output_dir=folder
    )
    made.enabled = True
    yield made
    made.close()


def hook_calls(model: nn.Module) -> list[Any]:
    """What the hooks of a model do when they are called, other than nothing."""
    found = []
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            arguments = (module, (X,), X) if name == "_forward_hooks" else (module, (X,))
            found += [r for hook in getattr(module, name).values() if (r := hook(*arguments)) is not None]
    return found


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_feeds_no_debugger(how: str, model: nn.Module, debugger: SequentialDebugger) -> None:
    expected = canonical(model(X))
    first = debugger({"meta_info": {"idx": [0, 1]}}, model)
    assert len(first) == 3
    made = COPIES[how](model)
    assert canonical(made(X)) == expected
    assert debugger({"meta_info": {"idx": [2, 3]}}, model) == {}
    model(X).sum().backward()
    made(X + 1).sum().backward()
    seen = debugger({"meta_info": {"idx": [4, 5]}}, model)
    assert canonical(seen["output/0"]) == canonical(first["output/0"])
    assert len(seen) == 6


def test_the_model_itself_does(model: nn.Module, debugger: SequentialDebugger) -> None:
    model(X)
    debugger({"meta_info": {"idx": [0, 1]}}, model)
    model(X + 1)
    assert len(debugger({"meta_info": {"idx": [2, 3]}}, model)) == 3


@pytest.mark.parametrize("how", COPIES)
def test_what_is_copied_survives_the_debugger(how: str, model: nn.Module, folder: Path) -> None:
    debugger = SequentialDebugger([node("output", Output, layer_name="*")], model, output_dir=folder)
    debugger.enabled = True
    made = COPIES[how](model)
    debugger.close()
    assert canonical(made(X)) == canonical(model(X))
    assert hook_calls(made) == []


@pytest.mark.parametrize("how", COPIES)
def test_hooks_of_a_copy_are_inert(how: str, model: nn.Module, debugger: SequentialDebugger) -> None:
    made = COPIES[how](model)
    assert hook_calls(made) == []
    assert debugger({"meta_info": {"idx": 0}}, model) == {}


def test_copying_leaves_the_model_alone(model: nn.Module, debugger: SequentialDebugger) -> None:
    before = hooks_of(model)
    for make in COPIES.values():
        make(model)
    assert hooks_of(model) == before


def test_the_users_own_hooks_are_copied(model: nn.Module, debugger: SequentialDebugger) -> None:
    model[0].register_forward_hook(user_hook)
    copied = copy.deepcopy(model)
    assert user_hook in copied[0]._forward_hooks.values()


def user_hook(module: nn.Module, input: Any, output: Any) -> None:
    pass


def loads_without_endoscope(say: Say, path: str, way: str) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "endoscope"]:
        del sys.modules[name]
    sys.modules["endoscope"] = None  # type: ignore[assignment]
    loaded = torch.load(path, weights_only=False) if way == "torch.save" else pickle.loads(Path(path).read_bytes())
    say(list(loaded(torch.ones(1, 4)).shape))


@pytest.mark.parametrize("way", ["torch.save", "pickle"])
def test_a_saved_model_opens_where_endoscope_is_not(
    way: str, model: nn.Module, debugger: SequentialDebugger, tmp_path: Path, warm: WarmProcess
) -> None:
    """The file of a plain torch model is read by plain torch, whoever looked on while it was saved."""
    path = tmp_path / "model"
    if way == "torch.save":
        torch.save(model, path)
    else:
        path.write_bytes(pickle.dumps(model))
    done = warm.run("tests.innocence.test_copies:loads_without_endoscope", path=str(path), way=way)
    assert done.said == [[1, 3]], done.stderr[-400:]


def test_a_hook_of_the_user_on_an_output_warns(model: nn.Module) -> None:
    outputs = model(X)
    outputs.register_hook(lambda g: None)
    with pytest.warns(UserWarning, match="backward hook"):
        torch.save(outputs, io.BytesIO())


def test_state_dicts_are_the_same(model: nn.Module, debugger: SequentialDebugger) -> None:
    assert canonical(dict(model.state_dict())) == canonical(dict(net().state_dict()))
    assert model.load_state_dict(net().state_dict()) == net().load_state_dict(net().state_dict())
    assert repr(model) == repr(net())


def test_copied_in_another_thread_while_it_runs(model: nn.Module, debugger: SequentialDebugger) -> None:
    """An EMA thread that copies the model meanwhile."""
    made: list[nn.Module] = []
    thread = threading.Thread(target=lambda: made.extend(copy.deepcopy(model) for _ in range(5)))
    thread.start()
    for k in range(10):
        model(X)
        assert len(debugger({"meta_info": {"idx": [2 * k, 2 * k + 1]}}, model)) == 3
    thread.join()
    assert all(canonical(m(X)) == canonical(model(X)) for m in made)
