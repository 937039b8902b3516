"""``endoscope demo``: a real run with a real capture, and how to read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from endoscope.runs.scores import Scores

WORST = 5


@click.command()
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the runs go; a new folder runs/demo-<time> by default.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--no-view", is_flag=True, help="End when the runs are made, without the viewer.")
def demo(work_dir: Path | None, epochs: int, no_view: bool) -> None:
    """Train a small CNN on scikit-learn's digits, evaluate it, look inside it, and show both runs in the viewer."""
    from endoscope.commands.console import console
    from endoscope.commands.digits import Digits, evaluation_config, training_config
    from endoscope.errors import ConfigError
    from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer

    if os.environ.get("ENDOSCOPE", "").lower() == "off":
        raise ConfigError("ENDOSCOPE=off is set, so that nothing is captured; unset it for the demo")
    Digits("eval")  # what it needs and has not: said before a folder is made
    out = console()
    folder = _new_folder(work_dir)
    out.print("A small CNN learns to read digits (scikit-learn's, 8 x 8 pixels), and Endoscope looks inside it.\n")
    trained, evaluated = folder / "training", folder / "evaluation"
    with _one_thread():
        SupervisedTrainer(training_config(trained, epochs=epochs)).run()
        out.print("\nThe last checkpoint, on digits that it has not seen", style="bold")
        scores = SupervisedEvaluator(evaluation_config(evaluated, trained)).run()
    assert scores is not None  # one rank
    _print_saved(out, trained, evaluated)
    worst = [idx for idx, _ in scores.worst("loss", WORST)]
    _print_worst(out, evaluated, scores, worst)
    _print_inside(out, evaluated, worst[0])
    _print_how_to_read(out, evaluated, worst[0])
    if not no_view:
        _view(folder)


def _view(folder: Path) -> None:
    """The viewer on both runs until Ctrl-C; without what it needs, one line says what to install."""
    from endoscope.commands.view import ViewerMissing, serve

    click.echo()
    try:
        serve((folder,), browser=_has_screen())
    except ViewerMissing as e:
        click.echo(f"To look at both runs in a browser: {e}")


def _has_screen() -> bool:
    """Whether somebody sits before this terminal and could see a browser open."""
    display = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return display and sys.stdout.isatty()


def _new_folder(wanted: Path | None) -> Path:
    """An empty folder: the wanted one, or a new one with the time in its name."""
    from endoscope.errors import ConfigError, FolderInUseError

    try:
        if wanted is not None:
            wanted.mkdir(parents=True, exist_ok=True)
            if any(wanted.iterdir()):
                raise FolderInUseError(f"{str(wanted)!r} is not empty; choose a new folder: nothing is overwritten")
            return wanted
        return _timed_folder(Path("runs"))
    except FolderInUseError:
        raise
    except OSError as e:
        raise ConfigError(f"cannot make a folder for the run: {e}; choose another with --work-dir") from e


def _timed_folder(parent: Path) -> Path:
    from datetime import datetime

    parent.mkdir(exist_ok=True)
    name, again = f"demo-{datetime.now():%Y%m%d-%H%M%S}", 1
    while True:
        folder = parent / (name if again == 1 else f"{name}-{again}")
        try:
            folder.mkdir()
        except FileExistsError:
            again += 1
        else:
            return folder


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on images this small is not worth dividing, and threads that wait for each other slow it down."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---------------------------------------------------------------- what is printed
def _print_saved(out: Console, *runs: Path) -> None:
    from endoscope.commands.captures import capture_facts, find_captures
    from endoscope.commands.listing import capture_table

    for run in runs:
        out.print(f"\nCaptured in {run}", style="bold", soft_wrap=True)
        out.print(capture_table([capture_facts(c) for c in find_captures(run)]))


def _print_worst(out: Console, evaluated: Path, scores: Scores, worst: list[int]) -> None:
    from rich import box
    from rich.table import Table

    from endoscope.pages.reader import load_debug_outputs

    data, outputs = load_debug_outputs(evaluated / "datapoints"), load_debug_outputs(evaluated / "outputs")
    out.print("The datapoints that the model gets most wrong", style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("idx", "label", "prediction", "confidence in the label", "loss"):
        table.add_column(name, justify="right")
    for idx in worst:
        label, prediction = int(data[idx]["labels"]), int(outputs[idx]["outputs"].argmax())
        found = scores.per_datapoint[idx]
        style = "red" if prediction != label else ""
        row = (str(idx), str(label), str(prediction), f"{found['confidence']:.1%}", f"{found['loss']:.3f}")
        table.add_row(*row, style=style)
    out.print(table)


def _print_inside(out: Console, evaluated: Path, idx: int) -> None:
    """The worst datapoint, and what the capture on disk holds of it."""
    from rich.columns import Columns

    from endoscope.commands.pictures import normalised, picture
    from endoscope.pages.reader import load_debug_outputs

    datapoint = load_debug_outputs(evaluated / "datapoints")[idx]
    seen = load_debug_outputs(evaluated)[idx]
    image = datapoint["inputs"][0, 0].tolist()
    cam = seen["gradcam"]["gradcam"][0]
    target = seen["gradcam"]["target_class"]
    out.print(f"Inside datapoint {idx}: a {int(datapoint['labels'])}, read as {target}", style="bold")
    heat = picture(normalised(cam.tolist()), "heat", out)
    blocks = [_captioned("the digit", picture(image, "grey", out)), _captioned(f"what speaks for {target}", heat)]
    out.print(Columns(blocks, padding=(0, 6)))
    highest = cam.max().item()
    out.print(f"Right: the Grad-CAM of layer relu2, its highest value ({highest:.3g}) shown brightest.", style="dim")
    for name, held in seen.items():
        if name.startswith("activations/"):
            stats = held["activation_stats"]
            zeros = f"{stats['sparsity']:.0%} of the values are 0, mean {stats['mean']:.3g}, max {stats['max']:.3g}"
            out.print(f"{held['layer_name']}: {zeros}, non-finite {stats['non_finite']:.0f}")


def _captioned(caption: str, shown: RenderableType) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(Text(caption, style="dim"), shown)


def _print_how_to_read(out: Console, evaluated: Path, idx: int) -> None:
    from shlex import quote

    run = quote(str(evaluated))
    text = f"""
Read it in Python:

    from endoscope import load_debug_outputs
    outputs = load_debug_outputs({str(evaluated)!r})
    print(outputs[{idx}]["gradcam"]["gradcam"])

or in the shell:

    endoscope pages list {run}
    endoscope pages show {run} {idx}
    endoscope pages show {run} {idx} --debugger activations

or in the browser:

    endoscope view {quote(str(evaluated.parent))}"""
    out.print(text, soft_wrap=True)
