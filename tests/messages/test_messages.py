"""The error text of each public entry point, as one table.

A message names the wrong value, says what was expected or what to do, has three lines at most, and shows no object
address, no tensor values and no path but the user's own. The table holds only what identifies a case, so that wording
may improve.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import endoscope
from endoscope import ForwardDebugger, SequentialDebugger, build_from_config, capture, load_debug_outputs
from endoscope.capturing.seen import NotCapturedError
from endoscope.cli import main
from endoscope.debuggers import FeatureMapDebugger, GradCAMDebugger, LayerOutputDebugger
from endoscope.errors import (
    ConfigError,
    DatapointError,
    DatapointNotFoundError,
    DebuggerError,
    EndoscopeError,
    FolderInUseError,
    LayerNotFoundError,
    PageError,
)
from endoscope.viewer import register

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
TENSOR_VALUES = re.compile(r"tensor\(|\[\s*-?\d+\.\d+\s*,")
ADVICE = re.compile(
    r"closest|Did you mean|expect|choose|must|needs?\b|\bgive|\buse |\badd |accepted|known:|watched|it has|\bcall |"
    r"make a new|set |missing|only |differ|holds|takes|looked for"
)
ROOT = str(Path(__file__).parents[2])


def check_message(text: str, tmp_path: Path, *, advice: bool = True) -> None:
    """What every message keeps to. Where naming the wrong value says everything, ``advice`` is False."""
    assert text
    assert len(text.splitlines()) <= 3, text
    assert not ADDRESS.search(text), text
    assert not TENSOR_VALUES.search(text), text
    assert ROOT not in text, text
    paths = re.findall(r"(?<![\w.*\])])/(?:[\w.-]+/)+[\w.-]*", text)
    assert all(path.startswith(str(tmp_path)) for path in paths), text
    assert ADVICE.search(text) or not advice, f"neither says what was expected nor what to do: {text}"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(x)).mean((2, 3)))


class Broken(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        raise KeyError("no such channel")


def sequential(*nodes: Any, model: Any = None, **options: Any) -> SequentialDebugger:
    return SequentialDebugger(list(nodes), Net() if model is None else model, **options)


def node(name: Any = "maps", cls: Any = FeatureMapDebugger, **args: Any) -> dict[str, Any]:
    return {"name": name, "debugger_config": {"class": cls, "args": args or {"layer_name": "conv"}}}


def called(datapoint: Any, *nodes: Any, **options: Any) -> Any:
    """A debugger that has seen a forward is called with ``datapoint``."""
    model = Net()
    with sequential(*nodes, model=model, **options) as debugger:
        debugger.enabled = True
        model(torch.zeros(1, 3, 5, 5))
        return debugger(datapoint, model)


def entered(*patterns: Any, model: Any = None, **options: Any) -> Any:
    with capture(Net() if model is None else model, *patterns, **options) as seen:
        return seen


def scripted() -> None:
    with warnings.catch_warnings(action="ignore"):
        model = torch.jit.script(nn.Sequential(nn.ReLU()))
    sequential(node(layer_name="0"), model=model)


def closed() -> None:
    debugger = sequential(node())
    debugger.close()
    debugger.enabled = True


def a_run(folder: Path, index: int = 3) -> Path:
    """A folder with the capture of one datapoint."""
    called({"meta_info": {"idx": index}}, node(), output_dir=folder)
    return folder


@dataclass(frozen=True)
class Case:
    """A call that fails, its error, and the texts that its message must hold."""

    name: str
    call: Callable[[Path], Any]
    error: type[Exception]
    texts: tuple[str, ...]
    advice: bool = True


CASES = [
    # ---- endoscope.*
    Case("layer", lambda p: endoscope.get_layer_by_name(Net(), "cnov"), LayerNotFoundError, ("'cnov'", "'conv'")),
    Case("layer, none near", lambda p: endoscope.get_layer_by_name(Net(), "x"), LayerNotFoundError, ("'x'", "'head'")),
    Case("no such class", lambda p: build_from_config({"class": "torch.nn.Linaer"}), ConfigError,
         ("'Linaer'", "'Linear'")),
    Case("no such module", lambda p: build_from_config({"class": "tocrh.nn.Linear"}), ConfigError, ("'tocrh'",),
         advice=False),
    Case("not a class", lambda p: build_from_config({"class": 3, "args": {}}), ConfigError, ("class", "3")),
    Case("misspelt argument", lambda p: build_from_config({"class": nn.Linear, "args": {"in_feature": 3}}), ConfigError,
         ("args.in_feature", "'in_features'")),
    Case("missing argument", lambda p: build_from_config({"class": nn.Linear, "args": {"in_features": 3}}), ConfigError,
         ("out_features",)),
    Case("args not a dict", lambda p: build_from_config({"class": nn.Linear, "args": [3]}), ConfigError,
         ("args", "list")),
    Case("a node inside another",
         lambda p: build_from_config({"class": nn.ModuleList, "args": {"modules": [{"class": nn.ReLU, "arg": {}}]}}),
         ConfigError, ("args.modules[0].arg", "'args'")),
    # ---- SequentialDebugger
    Case("config not a list", lambda p: SequentialDebugger({}, Net()), ConfigError, ("debuggers_config", "dict")),  # type: ignore[arg-type]
    Case("entry not a dict", lambda p: sequential("maps"), ConfigError, ("debuggers_config[0]", "str")),
    Case("entry without name", lambda p: sequential({"debugger_config": {}}), ConfigError,
         ("debuggers_config[0]", "'name'", "debugger_config")),
    Case("name not text", lambda p: sequential(node(7)), ConfigError, ("debuggers_config[0].name", "7")),
    Case("name twice", lambda p: sequential(node(), node()), ConfigError, ("debuggers_config[1].name", "'maps'")),
    Case("unknown layer", lambda p: sequential(node(layer_name="conv2")), LayerNotFoundError,
         ("debuggers_config[0]", "'conv2'", "'conv'")),
    Case("pattern without match", lambda p: sequential(node(layer_name="covn*")), LayerNotFoundError,
         ("'covn*'", "'conv'")),
    Case("layer not text", lambda p: sequential(node(layer_name=4)), ConfigError, ("layer", "int")),
    Case("not a debugger", lambda p: sequential(node(cls=nn.ReLU, inplace=True)), ConfigError,
         ("debuggers_config[0].debugger_config", "ReLU")),
    Case("misspelt debugger argument", lambda p: sequential(node(layer="conv")), ConfigError,
         ("debuggers_config[0].debugger_config", "layer", "'layer_name'")),
    Case("page_size_mb", lambda p: sequential(page_size_mb=-1), ConfigError, ("page_size_mb", "-1")),
    Case("queue_mb", lambda p: sequential(queue_mb="big"), ConfigError, ("queue_mb", "'big'")),
    Case("on_full", lambda p: sequential(on_full="wait"), ConfigError, ("on_full", "'wait'", "'block'", "'drop'")),
    Case("on_error", lambda p: sequential(on_error="stop"), ConfigError, ("on_error", "'stop'", "'raise'")),
    Case("page_format", lambda p: sequential(page_format="npz"), ConfigError, ("page_format", "'npz'", "'pickle'")),
    Case("model not a module", lambda p: sequential(node(), model=len), ConfigError, ("model", "torch.nn.Module")),
    Case("scripted model", lambda p: scripted(), ConfigError, ("hooks", "nn.Module")),
    Case("closed", lambda p: closed(), ConfigError, ("closed",)),
    Case("no meta_info", lambda p: called({"inputs": 1}, node()), DatapointError, ("meta_info",)),
    Case("no idx", lambda p: called({"meta_info": {"id": 1}}, node()), DatapointError, ("idx",)),
    Case("idx not a number", lambda p: called({"meta_info": {"idx": "a"}}, node()), DatapointError, ("idx", "a")),
    Case("on_error='raise'", lambda p: called({"meta_info": {"idx": 0}}, node(cls=Broken, layer_name="conv"),
         on_error="raise"), DebuggerError, ("'maps'", "KeyError", "no such channel"), advice=False),
    Case("add_to_buffer", lambda p: sequential().add_to_buffer({3: 1}, {"meta_info": {"idx": 0}}), ConfigError, ("3",)),
    Case("folder in use", lambda p: a_run(a_run(p / "run")), FolderInUseError, ("run", "overwrite")),
    # ---- ready-made debuggers
    Case("calls", lambda p: FeatureMapDebugger("conv", calls="every"), ConfigError, ("calls", "'every'", "'all'")),  # type: ignore[arg-type]
    Case("downsample_factor", lambda p: LayerOutputDebugger("conv", 0), ConfigError, ("downsample_factor", "0")),
    Case("target_class", lambda p: GradCAMDebugger("conv", "cat"), ConfigError, ("target_class", "'cat'")),  # type: ignore[arg-type]
    Case("target_layer", lambda p: sequential(node(cls=GradCAMDebugger, target_layer="cnov")), LayerNotFoundError,
         ("'cnov'", "'conv'")),
    Case("a class that the model has not",
         lambda p: GradCAMDebugger("conv", 7)({"inputs": torch.zeros(1, 3, 5, 5)}, Net()),
         EndoscopeError, ("7", "2"), advice=False),
    Case("a layer without maps",
         lambda p: GradCAMDebugger("head")({"inputs": torch.zeros(1, 3, 5, 5)}, Net()), EndoscopeError, ("'head'",)),
    # ---- capture
    Case("capture nothing", lambda p: entered(), ConfigError, ("capture(model)", '"*"')),
    Case("capture, unknown layer", lambda p: entered("cnov"), LayerNotFoundError, ("'cnov'", "'conv'")),
    Case("capture, no match", lambda p: entered("cnov*"), LayerNotFoundError, ("'cnov*'", "'conv'")),
    Case("capture, a list", lambda p: entered(["conv"]), ConfigError, ("list",)),
    Case("capture, calls", lambda p: entered("*", calls="each"), ConfigError, ("calls", "'each'", "'all'")),
    Case("capture, not a module", lambda p: entered("*", model=3), ConfigError, ("torch.nn.Module", "int")),
    Case("capture, not watched", lambda p: entered("conv").outputs["cnov"], NotCapturedError, ("'cnov'", "'conv'")),
    Case("capture, did not run", lambda p: entered("conv").outputs["conv"], NotCapturedError,
         ("'conv'", "did not run")),
    Case("capture, no gradients", lambda p: entered("conv").gradients["conv"], NotCapturedError, ("gradients=True",)),
    # ---- load_debug_outputs
    Case("no such folder", lambda p: load_debug_outputs(p / "nowhere"), PageError, ("nowhere",), advice=False),
    Case("no such datapoint", lambda p: load_debug_outputs(a_run(p / "run"))[4], DatapointNotFoundError, ("4",)),
    # ---- renderers
    Case("register a class", lambda p: register("maps", nn.ReLU), ConfigError, ("'maps'", "ReLU", "Renderer")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_python(case: Case, tmp_path: Path) -> None:
    with pytest.raises(case.error) as caught:
        case.call(tmp_path)
    text = str(caught.value)
    assert all(part in text for part in case.texts), text
    check_message(text, tmp_path, advice=case.advice)


# ---------------------------------------------------------------- the command line, and the configs of runs
CONFIG = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from endoscope.debuggers import FeatureMapDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
from endoscope.runners.metrics.classification import ClassificationMetric

data = TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
config = {
    "work_dir": "WORK_DIR",
    "epochs": 1,
    "model": {"class": nn.Linear, "args": {"in_features": 3, "out_features": 2}},
    "train_dataset": data,
    "val_dataset": data,
    "criterion": nn.CrossEntropyLoss(),
    "metric": {"class": ClassificationMetric},
    "optimizer": {"class": torch.optim.SGD, "args": {"lr": 0.1}},
}
"""
NOT_FOUND, WRONG = 2, 1


def config_file(folder: Path, **changed: str) -> str:
    lines = CONFIG.replace("WORK_DIR", str(folder / "run"))
    for key, value in changed.items():
        lines += f"\nconfig[{key!r}] = {value}" if value else f"\ndel config[{key!r}]"
    path = folder / "config.py"
    path.write_text(lines)
    return str(path)


@dataclass(frozen=True)
class Command:
    """A command that fails, and the texts that its message must hold."""

    name: str
    arguments: Callable[[Path], list[str]]
    texts: tuple[str, ...]
    advice: bool = True


def trained_with(**changed: str) -> Callable[[Path], list[str]]:
    return lambda p: ["train", config_file(p, **changed)]


def train_set(text: str) -> Callable[[Path], list[str]]:
    return lambda p: ["train", config_file(p), "--set", text]


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


COMMANDS = [
    Command("no such command", lambda p: ["trian"], ("trian", "'train'")),
    Command("no such option", lambda p: ["train", config_file(p), "--sett", "a=1"], ("--sett",)),
    Command("train without a config", lambda p: ["train"], ("config",)),
    Command("no such config", lambda p: ["train", str(p / "nowhere.py")], ("nowhere.py",), advice=False),
    Command("no config in the file", lambda p: ["train", written(p, "empty.py", "x = 1")], ("empty.py", "config")),
    Command("a config with an error", lambda p: ["train", written(p, "wrong.py", "config = 1 / 0")],
            ("wrong.py", "ZeroDivisionError"), advice=False),
    Command("a config that is not a dict", lambda p: ["train", written(p, "list.py", "config = [1]")], ("dict",)),
    Command("unknown key", trained_with(epoch="3"), ("epoch", "'epochs'")),
    Command("missing key", trained_with(metric=""), ("metric", "missing")),
    Command("epochs not a number", trained_with(epochs="'ten'"), ("epochs", "'ten'")),
    Command("epochs below 1", trained_with(epochs="0"), ("epochs", "0", "1")),
    Command("unknown precision", trained_with(precision="'fp8'"), ("precision", "'fp8'", "'bfloat16'")),
    Command("model argument", trained_with(model="{'class': nn.Linear, 'args': {'in_feature': 3}}"),
            ("model.args.in_feature", "'in_features'")),
    Command("optimizer class", trained_with(optimizer="{'class': 'torch.optim.Adm', 'args': {}}"),
            ("optimizer.class", "'Adm'", "'Adam'")),
    Command("metric of another kind", trained_with(metric="3"), ("metric", "3")),
    Command("no such device", trained_with(device="'gpu'"), ("device", "'gpu'")),
    Command("layer of a debugger", trained_with(
        debugger="{'class': SequentialDebugger, 'args': {'debuggers_config': [{'name': 'maps', 'debugger_config': "
                 "{'class': FeatureMapDebugger, 'args': {'layer_name': 'head'}}}]}}"),
            ("debugger.args.debuggers_config[0]", "'head'"), advice=False),
    Command("--set without a value", train_set("epochs"), ("epochs", "=")),
    Command("--set of an unknown key", train_set("epoch=3"), ("epoch", "'epochs'")),
    Command("--set of a wrong value", train_set("epochs=ten"), ("epochs", "ten")),
    Command("eval without its dataset", lambda p: ["eval", config_file(p)], ("eval_dataset", "missing")),
    Command("pages of nothing", lambda p: ["pages", "list", str(p / "nowhere")], ("nowhere",), advice=False),
    Command("pages of an empty folder", lambda p: ["pages", "show", str(p), "1"], ("page",)),
    Command("a datapoint that was not captured", lambda p: ["pages", "show", str(a_run(p / "run")), "44"], ("44",)),
    Command("an index that is not a number", lambda p: ["pages", "show", str(a_run(p / "run")), "one"], ("one",),
            advice=False),
    Command("an unknown file type", lambda p: ["pages", "export", str(a_run(p / "run")), str(p / "out.mat")],
            (".mat", ".npz")),
    Command("view nothing", lambda p: ["view", str(p / "nowhere")], ("nowhere",), advice=False),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_command_line(command: Command, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, command.arguments(tmp_path))
    assert result.exit_code in (WRONG, NOT_FOUND), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    text = re.split(r"^Error: ", result.output, flags=re.MULTILINE)[-1].strip()  # after click's line of usage
    assert all(part in text for part in command.texts), result.output
    check_message(text, tmp_path, advice=command.advice)


# ---------------------------------------------------------------- twins
@pytest.mark.parametrize(
    "text",
    [
        "",
        "one\ntwo\nthree\nfour: expected five",
        "expected <Linear object at 0x7f2b3c4d5e6f>",
        "expected tensor([1.0, 2.0])",
        "expected a file such as /usr/lib/python3/site.py",
        "it went wrong",
    ],
)
def test_twin_a_bad_message_is_noticed(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_message(text, tmp_path)
