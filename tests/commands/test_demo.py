"""``endoscope demo`` runs, saves what it promises, and the commands that it prints work."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.commands.captured import Run
from tests.golden.masking import masked

from endoscope import load_debug_outputs
from endoscope.commands.digits import DigitNet, Digits, evaluation_config, training_config
from endoscope.commands.pictures import normalised, picture
from endoscope.pages.verify import verify_folder
from endoscope.render.colours import GREY
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state.checkpoints import load_checkpoint
from endoscope.runs.scores import read_scores

SOURCE = Path(__file__).parents[2] / "src"


def snippet(output: str) -> str:
    shown = re.search(r"Read it in Python:\n\n(.*?)\n\n", output, re.DOTALL)
    assert shown is not None
    return "\n".join(line.removeprefix("    ") for line in shown[1].splitlines())


def test_the_demo_from_end_to_end(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    result = run("demo", "--epochs", 1, "--no-view")
    assert result.exit_code == 0
    golden("demo", masked(re.sub(r"(?m)^ *the digit .*\n([ .:=+*#%@-]*\n)+", "PICTURES\n", result.stdout)))
    assert "http" not in result.stdout
    assert torch.get_num_threads() == threads
    (work_dir,) = Path("runs").iterdir()
    assert re.fullmatch(r"demo-\d{8}-\d{6}", work_dir.name)

    for capture in (work_dir / "training" / "epoch_0", work_dir / "evaluation"):
        assert verify_folder(capture / "debugger") == []
    outputs = load_debug_outputs(work_dir / "evaluation")
    assert len(outputs) == 359
    for seen in (outputs[idx] for idx in list(outputs)[::60]):
        assert list(seen) == ["feature_maps", "activations/relu1", "activations/relu2", "gradcam"]
        assert seen["feature_maps"]["feature_map"].shape == (1, 32, 8, 8)
        assert seen["gradcam"]["gradcam"].shape == (1, 8, 8)
    assert re.search(r"epoch_0/debugger +\d+ +12 +359 .* closed +0 +0", result.stdout)
    assert re.search(r"^359 datapoints   accuracy 0\.\d+", result.stdout, re.MULTILINE)

    code = snippet(result.stdout)
    assert len(code.splitlines()) == 3
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().startswith("tensor([[[")
    commands = re.findall(r"^    endoscope (.*)$", result.stdout, re.MULTILINE)
    *read, view = map(shlex.split, commands)
    assert len(read) == 3
    assert all(run(*command).exit_code == 0 for command in read)
    assert view == ["view", str(work_dir)]
    assert run(*view, "--export", tmp_path / "both.html").exit_code == 0

    worst = int(re.search(r"Inside datapoint (\d+): a (\d), read as (\d)", result.stdout)[1])  # type: ignore[index]
    assert f"outputs[{worst}]" in code
    assert worst == read_scores(work_dir / "evaluation" / "evaluation_scores.json").worst("loss", 1)[0][0]


def test_splits_share_no_digit_and_idx_is_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    splits = [Digits(split) for split in ("train", "val", "eval")]
    places = [d["meta_info"]["idx"] for split in splits for d in split]
    assert sorted(places) == list(range(1797))
    target = load_digits().target
    assert all(int(d["labels"]) == target[d["meta_info"]["idx"]] for d in splits[1])


def test_captures_are_what_the_model_computes(tmp_path: Path) -> None:
    SupervisedTrainer(training_config(tmp_path / "a", epochs=1)).run()
    scores = SupervisedEvaluator(evaluation_config(tmp_path / "b", tmp_path / "a")).run()
    model = DigitNet()
    model.load_state_dict(load_checkpoint(tmp_path / "a" / "epoch_0" / "checkpoint.pt")["model"])
    model.eval()
    data = Digits("eval")
    outputs = model(torch.stack([d["inputs"] for d in data]))
    seen = load_debug_outputs(tmp_path / "b")
    for k in range(0, len(data), 50):
        idx = data[k]["meta_info"]["idx"]
        assert seen[idx]["gradcam"]["target_class"] == int(outputs[k].argmax())
        assert scores.per_datapoint[idx]["accuracy"] == float(outputs[k].argmax() == data[k]["labels"])


def test_nothing_is_overwritten(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine").write_text("mine")
    result = run("demo", "--work-dir", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"Error: '{tmp_path}' is not empty; choose a new folder, because nothing is overwritten\n"


def test_without_scikit_learn(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = run("demo", "--work-dir", tmp_path / "new")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: the demo needs scikit-learn, which is not installed; install it with: pip ")
    assert not (tmp_path / "new").exists()


def test_it_ends_in_the_viewer_until_it_is_interrupted(tmp_path: Path) -> None:
    code = "from endoscope.cli import main; main()"
    arguments = ["demo", "--epochs", "1", "--work-dir", str(tmp_path / "new")]
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**environment, "PYTHONPATH": str(SOURCE)},
    ) as process:
        try:
            assert process.stdout is not None
            found = next(at for line in process.stdout if (at := re.search(r"http://\S+", line)))
            base, query = found[0].split("/?")
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(f"{base}/api/runs?{query}", timeout=20) as answer:
                listed = json.load(answer)["runs"]
            assert [(one["name"], one["kind"], one["status"]) for one in listed] == [
                ("evaluation", "evaluation", "finished"),
                ("training", "training", "finished"),
            ]
            with browser.open(f"{base}/map", timeout=20) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGINT)
            process.wait(60)  # how long it takes is for the machine to say
        finally:
            process.kill()
        assert process.returncode == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_without_the_viewers_packages_it_prints_what_to_install(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "endoscope.viewer.serve", raising=False)
    result = run("demo", "--epochs", 1, "--work-dir", tmp_path / "new")
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert last.startswith("To look at both runs in a browser: the viewer needs 'uvicorn', which is not installed")
    assert last.endswith("pip install 'endoscope[viewer]'")


def test_switched_off_it_is_refused(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDOSCOPE", "off")
    result = run("demo", "--work-dir", tmp_path / "new")
    assert result.exit_code == 2
    assert "ENDOSCOPE=off" in result.stderr


def test_pictures_have_colours_on_a_terminal_and_characters_elsewhere() -> None:
    pixels = normalised([[0.0, 1.0], [2.0, 4.0]])
    assert pixels == [[0.0, 0.25], [0.5, 1.0]]
    assert normalised([[-1.0, 0.0]]) == [[0.0, 0.0]]
    plain = Console(file=io.StringIO())
    assert picture(pixels, GREY, plain).plain == "  ::\n==@@"
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False)
    terminal.print(picture(pixels, GREY, terminal))
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[48;2;0;0;0m  " in shown
    assert "\x1b[48;2;255;255;255m  " in shown
