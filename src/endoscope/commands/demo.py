"""``endoscope demo``: a real training and evaluation with captures, and how to read them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from endoscope.runs.scores import Scores

WORST = 5


@click.command()
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the runs; by default a new folder runs/demo-<time>.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--no-view", is_flag=True, help="Exit after the runs, without the viewer.")
def demo(work_dir: Path | None, epochs: int, no_view: bool) -> None:
    """Train and inspect a small CNN on real digits.

    Trains on scikit-learn's digits, evaluates, shows what the model computed for the worst datapoint, and opens both
    runs in the viewer.
    """
    from endoscope.commands.captures import capture_facts, find_captures
    from endoscope.commands.console import console
    from endoscope.commands.digits import Digits, evaluation_config, training_config
    from endoscope.commands.listing import capture_table
    from endoscope.errors import ConfigError
    from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer

    if os.environ.get("ENDOSCOPE", "").lower() == "off":
        raise ConfigError("ENDOSCOPE=off is set, so nothing would be captured; unset it for the demo")
    Digits("eval")  # if scikit-learn is missing, fail before creating a folder
    out = console()
    folder = _new_folder(work_dir)
    out.print("A small CNN learns to read digits (scikit-learn's, 8 x 8 pixels), and Endoscope looks inside it.\n")
    training, evaluation = folder / "training", folder / "evaluation"
    SupervisedTrainer(training_config(training, epochs=epochs)).run()
    out.print("\nThe last checkpoint, on digits that it has not seen", style="bold")
    scores = SupervisedEvaluator(evaluation_config(evaluation, training)).run()
    assert scores is not None  # there is one rank
    for run in (training, evaluation):
        out.print(f"\nCaptured in {run}", style="bold", soft_wrap=True)
        out.print(capture_table([capture_facts(c) for c in find_captures(run)]))
    worst = [idx for idx, _ in scores.worst("loss", WORST)]
    _print_worst(out, evaluation, scores, worst)
    _print_inside(out, evaluation, worst[0])
    _print_how_to_read(out, evaluation, worst[0])
    if not no_view:
        _view(folder)


def _view(folder: Path) -> None:
    """Serve both runs until Ctrl-C; if a package is missing, print what to install."""
    from endoscope.commands.view import ViewerMissing, serve

    click.echo()
    try:
        serve((folder,), browser=_can_show_a_browser())
    except ViewerMissing as e:
        click.echo(f"To look at both runs in a browser: {e}")


def _can_show_a_browser() -> bool:
    display = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return display and sys.stdout.isatty()


def _new_folder(path: Path | None) -> Path:
    """An empty folder: ``path``, or a new one with the time in its name."""
    from datetime import datetime

    from endoscope.errors import ConfigError, FolderInUseError

    try:
        if path is None:
            path = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as e:
        raise ConfigError(f"cannot create a folder for the runs: {e}; choose another with --work-dir") from e
    if not is_empty:
        raise FolderInUseError(f"{str(path)!r} is not empty; choose a new folder, because nothing is overwritten")
    return path


# ---------------------------------------------------------------- what is printed
def _print_worst(out: Console, evaluation: Path, scores: Scores, worst: list[int]) -> None:
    from rich import box
    from rich.table import Table

    from endoscope.pages.reader import load_debug_outputs

    data, outputs = load_debug_outputs(evaluation / "datapoints"), load_debug_outputs(evaluation / "outputs")
    out.print("The datapoints with the highest loss", style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("idx", "label", "prediction", "confidence in the label", "loss"):
        table.add_column(name, justify="right")
    for idx in worst:
        label, prediction = int(data[idx]["labels"]), int(outputs[idx]["outputs"].argmax())
        score = scores.per_datapoint[idx]
        row = (str(idx), str(label), str(prediction), f"{score['confidence']:.1%}", f"{score['loss']:.3f}")
        table.add_row(*row, style="red" if prediction != label else "")
    out.print(table)


def _print_inside(out: Console, evaluation: Path, idx: int) -> None:
    """The worst datapoint and its captures, read from disk."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    from endoscope.commands.pictures import normalised, picture
    from endoscope.pages.reader import load_debug_outputs
    from endoscope.render.colours import GREY, SEQUENTIAL

    datapoint = load_debug_outputs(evaluation / "datapoints")[idx]
    captures = load_debug_outputs(evaluation)[idx]
    image = datapoint["inputs"][0, 0].tolist()
    cam = captures["gradcam"]["gradcam"][0]
    target = captures["gradcam"]["target_class"]
    out.print(f"Inside datapoint {idx}: a {int(datapoint['labels'])}, read as {target}", style="bold")
    digit = Group(Text("the digit", style="dim"), picture(image, GREY, out))
    caption = Text(f"evidence for {target}", style="dim")
    out.print(Columns((digit, Group(caption, picture(normalised(cam.tolist()), SEQUENTIAL, out))), padding=(0, 6)))
    highest = cam.max().item()
    out.print(f"Right: the Grad-CAM of layer relu2; its highest value ({highest:.3g}) is the brightest.", style="dim")
    for name, value in captures.items():
        if name.startswith("activations/"):
            stats = value["activation_stats"]
            zeros = f"{stats['sparsity']:.0%} of the values are 0, mean {stats['mean']:.3g}, max {stats['max']:.3g}"
            out.print(f"{value['layer_name']}: {zeros}, non-finite {stats['non_finite']:.0f}")


def _print_how_to_read(out: Console, evaluation: Path, idx: int) -> None:
    from shlex import quote

    run = quote(str(evaluation))
    text = f"""
Read it in Python:

    from endoscope import load_debug_outputs
    outputs = load_debug_outputs({str(evaluation)!r})
    print(outputs[{idx}]["gradcam"]["gradcam"])

or in the shell:

    endoscope pages list {run}
    endoscope pages show {run} {idx}
    endoscope pages show {run} {idx} --debugger activations

or in the browser:

    endoscope view {quote(str(evaluation.parent))}"""
    out.print(text, soft_wrap=True)
