"""``endoscope demo``: it runs, saves what it says, and what it prints to type really works."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.commands.captured import Run

from endoscope import load_debug_outputs
from endoscope.commands.digits import DigitNet, load_digits, train_and_capture
from endoscope.commands.pictures import normalised, picture
from endoscope.pages.verify import verify_folder


def snippet(output: str) -> str:
    shown = re.search(r"Read it in Python:\n\n(.*?)\n\n", output, re.DOTALL)
    assert shown is not None
    return "\n".join(line.removeprefix("    ") for line in shown[1].splitlines())


def test_the_demo_from_end_to_end(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    result = run("demo", "--epochs", 1)
    assert result.exit_code == 0
    assert torch.get_num_threads() == threads
    (work_dir,) = Path("runs").iterdir()
    assert re.fullmatch(r"demo-\d{8}-\d{6}", work_dir.name)

    folder = work_dir / "epoch_0" / "debugger"
    assert verify_folder(folder) == []
    outputs = load_debug_outputs(work_dir / "epoch_0")
    assert len(outputs) == 359
    for seen in (outputs[idx] for idx in list(outputs)[::60]):
        assert list(seen) == ["feature_maps", "activations/relu1", "activations/relu2", "gradcam"]
        assert seen["feature_maps"]["feature_map"].shape == (1, 32, 8, 8)
        assert seen["gradcam"]["gradcam"].shape == (1, 8, 8)
    assert re.search(r"epoch_0/debugger +\d+ +12 +359 .* closed +0 +0", result.stdout)
    assert "359 validation datapoints captured" in result.stdout

    code = snippet(result.stdout)
    assert len(code.splitlines()) == 3
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().startswith("tensor([[[")
    commands = re.findall(r"^    endoscope (.*)$", result.stdout, re.MULTILINE)
    assert len(commands) == 3
    assert all(run(*shlex.split(command)).exit_code == 0 for command in commands)

    worst = int(re.search(r"Inside datapoint (\d+): a (\d), read as (\d)", result.stdout)[1])  # type: ignore[index]
    assert f"outputs[{worst}]" in code
    assert torch.equal(load_digits().tensors[0][worst, 0] * 16 % 1, torch.zeros(8, 8))


def test_the_capture_is_what_the_model_computes_and_checkpoints_are_spaced(tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(*(t[:60] for t in load_digits().tensors))
    epochs = list(train_and_capture(data, tmp_path, epochs=3))
    assert [e.saved is not None for e in epochs] == [False, True, True]
    assert all(e.saved.complete for e in epochs if e.saved is not None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch_1", "epoch_2"]
    again = list(train_and_capture(data, tmp_path / "again", epochs=3))
    assert [e.verdicts for e in again] == [e.verdicts for e in epochs]  # seeded, and capturing changes nothing
    worst = max(epochs[-1].verdicts, key=lambda v: v.loss)
    seen = load_debug_outputs(tmp_path / "epoch_2")[worst.idx]
    assert seen["gradcam"]["target_class"] == worst.prediction
    assert sum(p.numel() for p in DigitNet().parameters()) < 20_000


def test_nothing_is_overwritten(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine").write_text("mine")
    result = run("demo", "--work-dir", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"Error: '{tmp_path}' is not empty; choose a new folder: nothing is overwritten\n"


def test_without_scikit_learn(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = run("demo", "--work-dir", tmp_path / "new")
    assert result.exit_code == 2
    assert result.stderr == "Error: the demo needs scikit-learn: pip install 'endoscope[demo]'\n"
    assert not (tmp_path / "new").exists()


def test_switched_off_it_says_so(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDOSCOPE", "off")
    result = run("demo", "--work-dir", tmp_path / "new")
    assert result.exit_code == 2
    assert "ENDOSCOPE=off" in result.stderr


def test_pictures_are_colour_on_a_terminal_and_characters_elsewhere() -> None:
    pixels = normalised([[0.0, 1.0], [2.0, 4.0]])
    assert pixels == [[0.0, 0.25], [0.5, 1.0]]
    assert normalised([[-1.0, 0.0]]) == [[0.0, 0.0]]
    plain = Console(file=io.StringIO())
    assert picture(pixels, "grey", plain).plain == "  ::\n==@@"
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False)
    terminal.print(picture(pixels, "heat", terminal))
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[48;2;0;0;0m  " in shown
    assert "\x1b[48;2;252;255;164m  " in shown
