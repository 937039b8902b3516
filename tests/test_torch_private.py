"""Private torch symbols: named in one module, and none of them is needed for an import."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope import torch_private
from endoscope.torch_private import TorchSymbolMissing

SRC = Path(__file__).parents[1] / "src"
PRIVATE = re.compile(r"\btorch\._[a-zA-Z]\w*|from torch\._\w+|from torch\.fx import _\w+|\bcompiler\._\w+")


def symbols() -> list[str]:
    """Every symbol that torch_private looks up by its path in torch."""
    tree = ast.parse((SRC / "endoscope" / "torch_private.py").read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    paths = [a.value for c in calls if c.func.id in ("_symbol", "_required") for a in c.args  # type: ignore[attr-defined]
             if isinstance(a, ast.Constant) and isinstance(a.value, str) and " " not in a.value]  # fmt: skip
    return sorted({*paths, "_functorch.pyfunctorch.temporarily_clear_interpreter_stack"})


def test_no_other_module_names_a_private_symbol() -> None:
    named = [
        f"{path.relative_to(SRC)}:{number}: {line.strip()}"
        for path in sorted(SRC.rglob("*.py"))
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert named == []


@pytest.mark.parametrize(
    "line", ["torch._C._x()", "from torch._dynamo import x", "from torch.fx import _symbolic_trace"]
)
def test_twin_a_private_symbol_is_found(line: str) -> None:
    assert PRIVATE.search(line)


def test_this_torch_has_them_all() -> None:
    """So that a release that drops one is noticed here, and not only by a fallback."""
    import torch._functorch.pyfunctorch

    assert len(symbols()) >= 12
    for path in symbols():
        value: Any = torch
        for name in path.split("."):
            value = getattr(value, name)


WITHOUT_ONE = """
import importlib, json, pkgutil, sys, warnings
import torch, torch._functorch.pyfunctorch

warnings.simplefilter("ignore")
modules, symbols = json.loads(sys.argv[1]), json.loads(sys.argv[2])


def use():
    "One datapoint through a debugger, and a sparse, a quantised and a plain tensor copied."
    import tempfile
    from endoscope import SequentialDebugger, load_debug_outputs
    from endoscope.capturing.snapshot import snapshot
    from endoscope.debuggers import FeatureMapDebugger, GradientStatsDebugger

    nodes = [
        {"name": "map", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "0"}}},
        {"name": "gradient", "debugger_config": {"class": GradientStatsDebugger, "args": {"layer_name": "0"}}},
    ]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
    with tempfile.TemporaryDirectory() as folder, SequentialDebugger(nodes, model, output_dir=folder) as debugger:
        debugger.enabled = True
        model(torch.ones(1, 2)).sum().backward()
        assert [*debugger({"meta_info": {"idx": 0}}, model)] == ["map", "gradient"]
        assert debugger.flush()
        assert load_debug_outputs(folder)[0]["map"]["feature_map"].shape == (1, 2)
    snapshot([torch.eye(2).to_sparse(), torch.eye(2)])


failures = {}
for symbol in symbols:
    *parents, name = symbol.split(".")
    owner = torch
    for parent in parents:
        owner = getattr(owner, parent)
    value = getattr(owner, name)
    delattr(owner, name)
    for module in [m for m in sys.modules if m.split(".")[0] == "endoscope"]:
        del sys.modules[module]
    try:
        for module in modules:
            importlib.import_module(module)
        use()
    except BaseException as e:
        failures[symbol] = f"{type(e).__name__}: {e}"
    finally:
        setattr(owner, name, value)
print(json.dumps(failures))
"""


def test_importing_and_capturing_work_without_any_one_of_them() -> None:
    rooms = ("capturing", "debuggers", "explain", "pages")
    paths = [p for room in rooms for p in (SRC / "endoscope" / room).rglob("*.py")]
    modules = [".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for p in paths]
    command = [sys.executable, "-c", WITHOUT_ONE, json.dumps(["endoscope", *modules]), json.dumps(symbols())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


# ---------------------------------------------------------------- a clear error where there is no fallback
def per_tensor() -> Any:
    return torch_private.empty_per_tensor_quantized((2,), scale=1.0, zero_point=0, dtype=torch.quint8)


def per_channel() -> Any:
    scales = torch.ones(2)
    return torch_private.empty_per_channel_quantized(
        (2, 2), scales=scales, zero_points=scales, axis=0, dtype=torch.quint8
    )


def in_a_transform() -> Any:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch_private.outside_transforms():
            return x

    return torch.func.grad(inside)(torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
@pytest.mark.parametrize(
    ("use", "owner", "symbol", "feature"),
    [
        (per_tensor, "", "_empty_affine_quantized", "reading a quantised tensor"),
        (per_channel, "", "_empty_per_channel_affine_quantized", "reading a quantised tensor"),
        (in_a_transform, "_functorch.pyfunctorch", "temporarily_clear_interpreter_stack", "inside a torch.func"),
    ],
)
def test_the_error_names_the_symbol_and_the_remedy(
    use: Callable[[], Any], owner: str, symbol: str, feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use()
    target: Any = torch
    for name in filter(None, owner.split(".")):
        target = getattr(target, name)
    monkeypatch.delattr(target, symbol)
    with pytest.raises(TorchSymbolMissing, match=f"{feature}.*{symbol}.*install a torch release"):
        use()
