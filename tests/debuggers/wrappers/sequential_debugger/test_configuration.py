"""Every mistake in a configuration is found at construction, and its message says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import BackwardDebugger, BaseDebugger, ForwardDebugger, SequentialDebugger
from endoscope.debuggers import FeatureMapDebugger, GradCAMDebugger
from endoscope.errors import ConfigError, FolderInUseError, LayerNotFoundError

from .conftest import Output, Prediction, node


class Both(ForwardDebugger, BackwardDebugger):
    def process_forward(self, module: Any, input: Any, output: Any) -> Any:
        return {"output": output}

    def process_backward(self, module: Any, grad_output: Any) -> Any:
        return {"gradient": grad_output}


class WithoutSuper(ForwardDebugger):
    def __init__(self, layer_name: str) -> None:
        pass

    def process_forward(self, module: Any, input: Any, output: Any) -> Any:
        return {"output": output}


class WithoutMethod(ForwardDebugger):
    pass


def test_what_users_read(model: torch.nn.Module) -> None:
    debugger = SequentialDebugger(
        [node("a", Output, layer_name="0"), node("b", Output, layer_name="0"), node("c", Prediction)],
        model,
        page_size_mb=2,
    )
    assert list(debugger.debuggers) == ["a", "b", "c"]
    assert debugger.forward_debuggers == {"0": [debugger.debuggers["a"], debugger.debuggers["b"]]}
    assert debugger.page_size == 2 * 1024 * 1024
    assert debugger.enabled is False


def test_default_page_size(model: torch.nn.Module) -> None:
    assert SequentialDebugger([], model).page_size == 100 * 1024 * 1024


def test_patterns_become_one_debugger_a_layer(model: torch.nn.Module) -> None:
    debugger = SequentialDebugger([node("all", Output, layer_name="*")], model)
    assert list(debugger.debuggers) == ["all/0", "all/1", "all/2"]
    assert list(debugger.forward_debuggers) == ["0", "1", "2"]


def test_an_instance_is_as_good_as_a_node(model: torch.nn.Module) -> None:
    given = Output("*")
    debugger = SequentialDebugger(
        [{"name": "own", "debugger_config": Output("2")}, {"name": "all", "debugger_config": given}], model
    )
    assert list(debugger.debuggers) == ["own", "all/0", "all/1", "all/2"]
    assert given.layer_name == "*"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("first", "debuggers_config must be a list, not str"),
        (
            [node("a", Output("0"))],
            r"debuggers_config\[0\].debugger_config: 'class' is an object; expected the class Output",
        ),
        ([node("a", WithoutMethod, layer_name="0")], "WithoutMethod does not define process_forward"),
        ([node("a", WithoutSuper, layer_name="0")], r"call super\(\).__init__\(layer_name\) in its __init__"),
        (
            [node("a", Output, layer_name=3)],
            r"debuggers_config\[0\].debugger_config: a layer name must be text such as 'backbone.layer4', not int",
        ),
        ([{"name": "x"}], r"debuggers_config\[0\] must be a dict with 'name' and 'debugger_config'.*\['name'\]"),
        ([{"name": 3, "debugger_config": None}], r"debuggers_config\[0\].name must be text, found 3"),
        ([node("x", Output, layer_name="O")], r"debuggers_config\[0\] \('x'\): no layer is called 'O'"),
        ([node("x", Output, layer="0")], r"debuggers_config\[0\].debugger_config: args.layer: .*'layer_name'"),
        ([node("x", Output)], r"debuggers_config\[0\].debugger_config: args.layer_name"),
        ([node("x", dict)], r"debuggers_config\[0\].debugger_config must build a BaseDebugger, found dict"),
        (
            [node("x", Output, layer_name="0"), node("x", Output, layer_name="1")],
            r"debuggers_config\[1\].name: there is already a debugger called 'x'",
        ),
        ([node("x", Both, layer_name="0")], "a debugger is either a ForwardDebugger or a BackwardDebugger"),
        ([node("x", GradCAMDebugger, target_layer="9")], r"\('x'\): no layer is called '9'"),
        ([node("x", Output, layer_name="9*")], "no layer matches '9\\*'"),
    ],
)
def test_messages(model: torch.nn.Module, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequentialDebugger(config, model)


def test_the_nearest_layer_is_named() -> None:
    net = torch.nn.ModuleDict({"backbone": torch.nn.ModuleDict({"layer4": torch.nn.ReLU()})})
    with pytest.raises(KeyError, match=r"no layer is called 'backbone.layr4'; closest: 'backbone.layer4'"):
        SequentialDebugger([node("x", Output, layer_name="backbone.layr4")], net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_full": "wait"}, "on_full='wait' is not a choice; choose from 'block', 'drop'"),
        ({"on_error": "ignore"}, "on_error='ignore' is not a choice"),
        ({"page_format": "hdf5"}, "page_format='hdf5' is not a choice"),
        ({"page_size_mb": 0}, "page_size_mb=0 must be a number above 0"),
        ({"queue_mb": -1}, "queue_mb=-1 must be a number above 0"),
        ({"page_size_mb": float("inf")}, "page_size_mb=inf must be a number above 0"),
        ({"page_size_mb": float("nan")}, "page_size_mb=nan must be a number above 0"),
    ],
)
def test_options(model: torch.nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequentialDebugger([], model, **options)


def test_the_model_must_be_one() -> None:
    with pytest.raises(ConfigError, match="model must be a torch.nn.Module, not str"):
        SequentialDebugger([], "resnet")  # type: ignore[arg-type]


def test_a_folder_with_pages_is_refused(make: Any, run: Any, tmp_path: Path, model: torch.nn.Module) -> None:
    run(first := make(), 0)
    first.close()
    with pytest.raises(
        FolderInUseError, match=r"already holds pages \(.*\); choose another folder, or pass overwrite=True"
    ):
        SequentialDebugger([], model, output_dir=tmp_path / "debugger")
    again = make(overwrite=True)
    run(again, 7)
    again.close()
    from endoscope import load_debug_outputs

    assert list(load_debug_outputs(tmp_path)) == [7]


def test_a_folder_that_cannot_be_made(model: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        SequentialDebugger([], model, output_dir=tmp_path / "file" / "debugger")


def test_samples_in_the_manner_of_the_seeds_run_unchanged(make: Any, run: Any) -> None:
    from debuggers.base_debugger import BaseDebugger as SeedBase
    from debuggers.forward_debugger import ForwardDebugger as SeedForward
    from debuggers.utils import get_layer_by_name
    from debuggers.wrappers.sequential_debugger import SequentialDebugger as SeedSequential

    assert (SeedBase, SeedForward, SeedSequential) == (BaseDebugger, ForwardDebugger, SequentialDebugger)

    class Feature(SeedForward):
        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            return {"feature_map": output.detach().cpu(), "stats": {"mean": float(output.mean())}}

    class Downsampled(SeedForward):
        def __init__(self, layer_name: str, factor: int = 4) -> None:
            super().__init__(layer_name)
            self.factor = factor

        def process_forward(self, module: Any, input: Any, output: Any) -> Any:
            return {"output": output.detach().cpu()[..., :: self.factor]}

    class NoInit(SeedBase):  # like the seeds' Grad-CAM: it neither calls super().__init__() nor respects the RNG
        def __init__(self, target_layer: str, target_class: int | None = None) -> None:
            self.target_layer = target_layer
            self.target_class = target_class

        def __call__(self, datapoint: Any, model: Any) -> Any:
            return {"gradcam": torch.rand(1, 8, 8), "layer": str(get_layer_by_name(model, self.target_layer))}

    debugger = make(
        node("feature", Feature, layer_name="0"),
        node("down", Downsampled, layer_name="0", factor=2),
        node("gradcam", NoInit, target_layer="2", target_class=None),
    )
    seen = run(debugger, 3)
    assert list(seen) == ["feature", "down", "gradcam"]
    assert seen["feature"]["stats"]["mean"] == pytest.approx(float(seen["feature"]["feature_map"].mean()))
    assert seen["down"]["output"].shape == (1, 4)


def test_built_from_a_config_node(model: torch.nn.Module) -> None:
    from endoscope import build_from_config

    config = {
        "class": SequentialDebugger,
        "args": {"page_size_mb": 1, "debuggers_config": [node("f", FeatureMapDebugger, layer_name="*")]},
    }
    assert list(build_from_config(config, model=model).debuggers) == ["f/0", "f/1", "f/2"]


def test_unknown_layers_are_layer_errors(model: torch.nn.Module) -> None:
    with pytest.raises(LayerNotFoundError):
        SequentialDebugger([node("x", Output, layer_name="nope")], model)
