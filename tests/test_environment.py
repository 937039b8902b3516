"""ENDOSCOPE=off: programs that use Endoscope work as before, and nothing is captured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from endoscope import EndoscopeError, ForwardDebugger, SequentialDebugger
from endoscope.debuggers import GradCAMDebugger, GradientStatsDebugger


class Output(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        return {"output": output}


NODES = [
    {"name": "output", "debugger_config": {"class": Output, "args": {"layer_name": "*"}}},
    {"name": "gradient", "debugger_config": {"class": GradientStatsDebugger, "args": {"layer_name": "*"}}},
    {"name": "cam", "debugger_config": {"class": GradCAMDebugger, "args": {"target_layer": "0"}}},
]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def hooks_on(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def run(model: nn.Module, debugger: SequentialDebugger) -> dict[str, Any]:
    """A loop as in a training script."""
    x = torch.ones(1, 1, 4, 4)
    for idx in range(3):
        outputs = model(x)
        outputs.sum().backward()
        seen = debugger({"inputs": x, "outputs": outputs, "meta_info": {"idx": idx}}, model)
    return seen


@pytest.mark.parametrize("value", ["off", "OFF", "Off"])
def test_off(value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    monkeypatch.setenv("ENDOSCOPE", value)
    model = net()
    debugger = SequentialDebugger(NODES, model, output_dir=tmp_path / "debugger")
    for _ in range(3):
        debugger.enabled = True
        assert debugger.enabled is False
        assert hooks_on(model) == 0
        assert run(model, debugger) == {}
        debugger.enabled = False
    assert debugger.flush() is True
    debugger.save_all(tmp_path / "debugger")
    debugger.close()
    assert [r.getMessage() for r in caplog.records if r.name == "endoscope"] == [
        "ENDOSCOPE=off is set: nothing is captured"
    ]
    assert not any((tmp_path / "debugger").iterdir())


@pytest.mark.parametrize("value", [None, "", "on", "1"])
def test_not_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    if value is None:
        monkeypatch.delenv("ENDOSCOPE", raising=False)
    else:
        monkeypatch.setenv("ENDOSCOPE", value)
    model = net()
    with SequentialDebugger(NODES, model, output_dir=tmp_path / "debugger") as debugger:
        debugger.enabled = True
        assert hooks_on(model) == 3
        assert [*run(model, debugger)] == [*debugger.debuggers]
    assert hooks_on(model) == 0
    assert caplog.records == []


def test_switched_off_while_enabled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable is read when a debugger is enabled; a debugger that is already enabled stays enabled."""
    model = net()
    debugger = SequentialDebugger(NODES, model, output_dir=tmp_path / "debugger")
    debugger.enabled = True
    monkeypatch.setitem(os.environ, "ENDOSCOPE", "off")
    assert run(model, debugger)
    debugger.enabled = False
    debugger.enabled = True
    assert run(model, debugger) == {}
    debugger.close()


def test_a_wrong_configuration_is_still_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes are reported even when nothing is captured."""
    monkeypatch.setenv("ENDOSCOPE", "off")
    with pytest.raises(KeyError, match="no layer is called 'O'"):
        SequentialDebugger([{"name": "x", "debugger_config": Output("O")}], net())


# ---------------------------------------------------------------- disabled means free
def test_no_hook_while_disabled(tmp_path: Path) -> None:
    model = net()
    dicts = [m._forward_hooks for m in model.modules()]
    debugger = SequentialDebugger(NODES, model, output_dir=tmp_path / "debugger")
    assert hooks_on(model) == 0
    for _ in range(2):
        debugger.enabled = True
        debugger.enabled = True
        assert hooks_on(model) == 3
        debugger.enabled = False
        debugger.enabled = False
        assert hooks_on(model) == 0
        assert run(model, debugger) == {}
    debugger.close()
    assert all(a is b for a, b in zip(dicts, (m._forward_hooks for m in model.modules()), strict=True))
    assert not any((tmp_path / "debugger").iterdir())


def test_what_ran_while_disabled_is_not_captured(tmp_path: Path) -> None:
    model = net()
    with SequentialDebugger(NODES[:1], model, output_dir=tmp_path / "debugger") as debugger:
        debugger.enabled = True
        model(torch.ones(1, 1, 4, 4))
        debugger.enabled = False
        model(torch.zeros(1, 1, 4, 4))
        debugger.enabled = True
        assert debugger({"meta_info": {"idx": 0}}, model) == {}


class Unhookable(nn.Module):
    """Like a ScriptModule, which refuses hooks."""

    def register_forward_hook(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("register_forward_hook is not supported on ScriptModules")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_failed_attachment_leaves_no_hook(tmp_path: Path) -> None:
    """Refused with our error before the first step; no hook stays attached."""
    model = nn.Sequential(nn.Linear(1, 1), Unhookable(), nn.Linear(1, 1))
    debugger = SequentialDebugger(NODES[:1], model, output_dir=tmp_path / "debugger")
    with pytest.raises(EndoscopeError, match="'1'"):
        debugger.enabled = True
    assert debugger.enabled is False
    assert hooks_on(model) == 0


def test_a_closed_debugger_stays_closed(tmp_path: Path) -> None:
    model = net()
    debugger = SequentialDebugger(NODES, model, output_dir=tmp_path / "debugger")
    debugger.close()
    with pytest.raises(ValueError, match="this debugger is closed; make a new one"):
        debugger.enabled = True
    assert hooks_on(model) == 0
    assert run(model, debugger) == {}
