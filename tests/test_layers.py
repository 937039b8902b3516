"""Names as the user wrote the model: through wrappers, by pattern, and what is said about a name that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from endoscope.errors import ConfigError, LayerNotFoundError
from endoscope.layers import get_layer_by_name, is_pattern, named_layers, select, unwrap


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.act = nn.ReLU()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"layer1": Block(), "layer2": Block(), "layer10": Block()})
        self.head = nn.Linear(3, 2)
        self.nothing = None


NAMES = [
    "backbone",
    *(f"backbone.{layer}{part}" for layer in ("layer1", "layer2", "layer10") for part in ("", ".conv", ".act")),
    "head",
]


def fake_ddp(model: nn.Module) -> nn.Module:
    """DDP without a process group: only what it holds counts here."""
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(made)
    made.module = model
    return made


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda m: m,
    "DataParallel": nn.DataParallel,
    "DDP": fake_ddp,
    "AveragedModel": AveragedModel,
    "compile": torch.compile,
    "checkpoint": checkpoint_wrapper,
    "DDP of compile": lambda m: fake_ddp(torch.compile(m)),
    "compile of DDP": lambda m: torch.compile(fake_ddp(m)),
    "DataParallel twice": lambda m: nn.DataParallel(nn.DataParallel(m)),
}


# ---------------------------------------------------------------- wrappers
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_are_the_users(wrapper: str) -> None:
    model = WRAPPERS[wrapper](net := Net())
    inner = unwrap(model)
    assert type(inner) is Net
    if wrapper != "AveragedModel":  # which copies
        assert inner is net
    assert [name for name, _ in named_layers(model)] == NAMES
    assert all(layer is inner.get_submodule(name) for name, layer in named_layers(model))
    assert get_layer_by_name(model, "backbone.layer2.conv") is inner.backbone["layer2"].conv
    assert get_layer_by_name(model, "") is inner
    assert select(model, "*.act") == [f"backbone.layer{k}.act" for k in (1, 2, 10)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_wrapped_spelling_works_too(wrapper: str) -> None:
    model = WRAPPERS[wrapper](Net())
    wrapped = next(name for name, m in model.named_modules() if m is unwrap(model).head)
    assert get_layer_by_name(model, wrapped) is unwrap(model).head
    assert get_layer_by_name(model, "module.head") is unwrap(model).head
    assert select(model, "module.backbone.*.act") == select(model, "backbone.*.act")


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_a_config_written_for_a_wrapped_model(prefix: str) -> None:
    """The same names serve the plain model on a laptop."""
    model = Net()
    assert get_layer_by_name(model, f"{prefix}head") is model.head
    assert select(model, f"{prefix}*.act") == select(model, "*.act")


@pytest.mark.parametrize("wrapper", ["compile", "checkpoint", "DataParallel"])
def test_a_wrapped_part(wrapper: str) -> None:
    net = Net()
    net.backbone["layer1"] = WRAPPERS[wrapper](inner := Block())
    assert [name for name, _ in named_layers(net)] == NAMES
    assert get_layer_by_name(net, "backbone.layer1") is inner
    assert get_layer_by_name(net, "backbone.layer1.conv") is inner.conv


class Residual(nn.Module):
    """The user's own, which happens to call its only child ``module``: no wrapper, it computes something."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x + self.module(x)


def test_a_layer_with_one_child_called_module_is_no_wrapper() -> None:
    net = nn.Sequential(Residual(nn.Linear(2, 2)), nn.ReLU())
    assert unwrap(net[0]) is net[0]
    assert get_layer_by_name(net, "0") is net[0]
    assert get_layer_by_name(net, "0.module") is net[0].module
    assert [name for name, _ in named_layers(net)] == ["0", "0.module", "1"]


def test_a_model_with_one_child_called_module_is_no_wrapper() -> None:
    net = Residual(nn.Linear(2, 2))
    assert get_layer_by_name(net, "") is net
    assert [name for name, _ in named_layers(net)] == ["module"]


# ---------------------------------------------------------------- names
def test_a_shared_module_has_every_name() -> None:
    shared = nn.Linear(2, 2)
    net = nn.ModuleDict({"encoder": nn.Sequential(shared), "decoder": shared})
    assert [name for name, layer in named_layers(net) if layer is shared] == ["encoder.0", "decoder"]
    assert get_layer_by_name(net, "encoder.0") is get_layer_by_name(net, "decoder") is shared
    assert select(net, "*") == ["encoder", "encoder.0", "decoder"]


def test_names_with_odd_characters() -> None:
    net = nn.Module()
    for name in ("a b", "größe", "a[0]", "x*y", "layer-1", "0"):
        net.add_module(name, nn.ReLU())
    for name in ("a b", "größe", "a[0]", "x*y", "layer-1", "0"):
        assert get_layer_by_name(net, name) is net.get_submodule(name)
    assert select(net, "größe") == ["größe"]


def test_a_model_without_layers() -> None:
    relu = nn.ReLU()
    assert get_layer_by_name(relu, "") is relu
    assert list(named_layers(relu)) == []
    with pytest.raises(LayerNotFoundError, match=r"^no layer is called 'a'; the model has no layers$"):
        get_layer_by_name(relu, "a")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", NAMES),
        ("head*", ["head"]),
        ("backbone.layer?", ["backbone.layer1", "backbone.layer2"]),
        ("backbone.layer[12]", ["backbone.layer1", "backbone.layer2"]),
        ("backbone.layer[!1]", ["backbone.layer2"]),
        ("backbone.layer1*", ["backbone.layer1", "backbone.layer1.conv", "backbone.layer1.act",
                              "backbone.layer10", "backbone.layer10.conv", "backbone.layer10.act"]),
        ("*.layer1.*", ["backbone.layer1.conv", "backbone.layer1.act"]),
        ("head", ["head"]),
        ("", [""]),
    ],
)  # fmt: skip
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert select(Net(), pattern) == expected
    assert is_pattern(pattern) == any(c in pattern for c in "*?[")


def test_patterns_are_case_sensitive() -> None:
    with pytest.raises(LayerNotFoundError):
        select(Net(), "HEAD*")


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("backbone.layr2", "no layer is called 'backbone.layr2'; closest: 'backbone.layer2', 'backbone.layer1', "
                           "'backbone.layer10'"),
        ("heed", "no layer is called 'heed'; closest: 'head'"),
        ("module.heed", "no layer is called 'module.heed'; closest: 'head'"),
        ("zzz", "no layer is called 'zzz'; it has 'backbone', 'backbone.layer1', 'backbone.layer1.conv', "
                "'backbone.layer1.act', 'backbone.layer2', 'backbone.layer2.conv', 'backbone.layer2.act', "
                "'backbone.layer10', ... (11 in all)"),
        ("head.weight", "no layer is called 'head.weight'; closest: 'head'"),
        ("backbone.", "no layer is called 'backbone.'; closest: 'backbone', 'backbone.layer2', 'backbone.layer1'"),
        (" head", "no layer is called ' head'; closest: 'head'"),
    ],
)  # fmt: skip
def test_an_unknown_name(name: str, message: str) -> None:
    with pytest.raises(LayerNotFoundError) as raised:
        get_layer_by_name(Net(), name)
    assert str(raised.value) == message
    assert isinstance(raised.value, (KeyError, ConfigError))
    with pytest.raises(KeyError):
        select(Net(), name)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("heat*", "no layer matches 'heat*'; closest: 'head'"),
        ("zzz*", "no layer matches 'zzz*'; it has 'backbone', "),
        ("backbone.layer3.*", "no layer matches 'backbone.layer3.*'; closest: 'backbone.layer"),
    ],
)
def test_an_unknown_pattern(pattern: str, message: str) -> None:
    with pytest.raises(LayerNotFoundError) as raised:
        select(Net(), pattern)
    assert str(raised.value).startswith(message)


def test_a_pattern_on_a_model_without_layers() -> None:
    with pytest.raises(LayerNotFoundError, match=r"no layer matches '\*'; the model has no layers"):
        select(nn.ReLU(), "*")


@pytest.mark.parametrize("name", [None, 4, ["head"], nn.ReLU()], ids=lambda n: type(n).__name__)
def test_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"a layer name must be text such as 'backbone\.layer4', not "):
        select(Net(), name)
