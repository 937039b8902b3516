"""``endoscope demo``: a real run with a real capture, and how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from torch.utils.data import TensorDataset

    from endoscope.commands.digits import Epoch, Verdict

WORST = 5


@click.command()
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the run goes; a new folder runs/demo-<time> by default.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=4, show_default=True)
def demo(work_dir: Path | None, epochs: int) -> None:
    """Train a small CNN on scikit-learn's digits, look inside it, and show what was found."""
    from endoscope.commands.console import console
    from endoscope.commands.digits import load_digits, train_and_capture

    out = console()
    data = load_digits()
    folder = _new_folder(work_dir)
    out.print("A small CNN learns to read digits (scikit-learn's, 8 x 8 pixels), and Endoscope looks inside it.\n")
    for epoch in train_and_capture(data, folder, epochs=epochs):
        _print_epoch(out, epoch)
    _print_saved(out, folder)
    worst = sorted(epoch.verdicts, key=lambda v: v.loss, reverse=True)[:WORST]
    _print_worst(out, worst)
    _print_inside(out, folder / f"epoch_{epoch.number}", worst[0], data)
    _print_how_to_read(out, folder, epoch.number, worst[0].idx)


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


# ---------------------------------------------------------------- what is printed
def _print_epoch(out: Console, epoch: Epoch) -> None:
    saved = ""
    if epoch.saved is not None:
        whole = f"{len(epoch.verdicts)} validation datapoints captured"
        saved = f"   {whole if epoch.saved.complete else f'captured with gaps: {epoch.saved}'}"
    out.print(f"epoch {epoch.number}   loss {epoch.loss:.3f}   accuracy {epoch.accuracy:.1%}{saved}", soft_wrap=True)


def _print_saved(out: Console, folder: Path) -> None:
    from endoscope.commands.captures import capture_facts, find_captures
    from endoscope.commands.listing import capture_table

    out.print("\nWhat was saved", style="bold")
    out.print(capture_table([capture_facts(c) for c in find_captures(folder)]))


def _print_worst(out: Console, worst: list[Verdict]) -> None:
    from rich import box
    from rich.table import Table

    out.print("The datapoints that the model gets most wrong (validation, last epoch)", style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("idx", "label", "prediction", "confidence", "loss"):
        table.add_column(name, justify="right")
    for v in worst:
        style = "red" if v.prediction != v.label else ""
        table.add_row(str(v.idx), str(v.label), str(v.prediction), f"{v.confidence:.1%}", f"{v.loss:.3f}", style=style)
    out.print(table)


def _print_inside(out: Console, epoch_dir: Path, worst: Verdict, data: TensorDataset) -> None:
    """The worst datapoint, and what the capture on disk holds of it."""
    from rich.columns import Columns

    from endoscope.commands.pictures import normalised, picture
    from endoscope.pages.reader import load_debug_outputs

    seen = load_debug_outputs(epoch_dir)[worst.idx]
    image = data.tensors[0][worst.idx, 0].tolist()
    cam = seen["gradcam"]["gradcam"][0]
    out.print(f"Inside datapoint {worst.idx}: a {worst.label}, read as {worst.prediction}", style="bold")
    heat = picture(normalised(cam.tolist()), "heat", out)
    target = seen["gradcam"]["target_class"]
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


def _print_how_to_read(out: Console, folder: Path, epoch: int, idx: int) -> None:
    from shlex import quote

    run = quote(str(folder))
    text = f"""
Read it in Python:

    from endoscope import load_debug_outputs
    outputs = load_debug_outputs({str(folder / f"epoch_{epoch}")!r})
    print(outputs[{idx}]["gradcam"]["gradcam"])

or in the shell:

    endoscope pages list {run}
    endoscope pages show {run} {idx}
    endoscope pages show {run} {idx} --epoch {epoch} --debugger activations"""
    out.print(text, soft_wrap=True)
