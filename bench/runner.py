"""The cost of the trainer compared with an equivalent hand-written loop, and of a debugger in validation.

A block is a pass over a few batches: the same loader, model, optimizer and metric for every candidate. Before anything
is measured, both loops start from the same weights and must end with the same, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import torch
from capture import Map, RawAsync
from measure import Comparison, Cost, Spread, Target
from models import STAGES, BasicBlock, resnet18
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from endoscope.commands.digits import DigitNet
from endoscope.debuggers import FeatureMapDebugger, SequentialDebugger
from endoscope.runners.loops.progress import Bar, Lines
from endoscope.runners.loops.supervised import SupervisedTrainer
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.state.run_folder import RunFolder

ALLOWED = 1.02
BARE, TRAINER, BAR = "bare loop", "trainer", "trainer, with a terminal's bar"
RAW, DISABLED, RAW_INSIDE, MAPS, STATISTICS, KEPT = (
    "bare loop, raw asynchronous write (the limit)",
    "trainer, debugger disabled",
    "trainer, raw asynchronous write (the limit)",
    "trainer, maps",
    "trainer, FeatureMapDebugger",
    "trainer, FeatureMapDebugger, outputs kept",
)
BESIDE = "beside: "


@dataclass(frozen=True)
class Work:
    """A model and its data; a block has ``train_steps`` or ``val_steps`` batches."""

    name: str
    model: Callable[[], nn.Module]
    train_image: tuple[int, int, int]
    train_batch: int
    train_steps: int
    val_image: tuple[int, int, int]
    val_batch: int
    val_steps: int


class SmallResNet(nn.Sequential):
    """Six residual blocks for images of 32 x 32."""

    def __init__(self) -> None:
        widths = (16, 16, 32, 32, 64, 64)
        blocks = [BasicBlock(a, b, b // a) for a, b in pairwise((16, *widths))]
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        )


class Nothing(nn.Module):
    """Almost no arithmetic: what is left is the loop itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores.expand(len(x), 10)


SMALL = Work("a ResNet of 13 convolutions, batch 8 of 32 x 32", SmallResNet, (3, 32, 32), 8, 8, (3, 32, 32), 8, 8)
NOTHING = Work("a model without arithmetic, batch 4", Nothing, (1, 1, 1), 4, 100, (1, 1, 1), 4, 100)
TINY = Work("the demo's CNN, batch 32 of 8 x 8", DigitNet, (1, 8, 8), 32, 40, (1, 8, 8), 32, 40)
CAPTURED = (
    Work("ResNet-18, batch 1 of 128 x 128", resnet18, (3, 128, 128), 1, 1, (3, 128, 128), 1, 48),
    Work("ResNet-18, batch 16 of 128 x 128", resnet18, (3, 128, 128), 16, 1, (3, 128, 128), 16, 4),
)


def images(shape: tuple[int, int, int], count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(count, *shape, generator=generator), torch.randint(10, (count,), generator=generator)
    )


class Quiet(Lines):
    """Into a log file; what it would print stays out of our tables."""

    def report(self, line: str) -> None:
        pass


def terminal_bar() -> Bar:
    """A bar that draws for a terminal which nobody sees."""
    with contextlib.redirect_stdout(io.StringIO()):
        os.environ["FORCE_COLOR"] = "1"
        try:
            return Bar()
        finally:
            del os.environ["FORCE_COLOR"]


def config(work: Work, model: nn.Module, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "work_dir": str(folder),
        "epochs": 1,
        "model": model,
        "train_dataset": images(work.train_image, work.train_batch * work.train_steps),
        "val_dataset": images(work.val_image, work.val_batch * work.val_steps),
        "train_dataloader": {"class": DataLoader, "args": {"batch_size": work.train_batch, "shuffle": True}},
        "val_dataloader": {"class": DataLoader, "args": {"batch_size": work.val_batch}},
        "criterion": {"class": nn.CrossEntropyLoss},
        "metric": {"class": ClassificationMetric},
        "optimizer": {"class": torch.optim.SGD, "args": {"lr": 1e-3, "momentum": 0.9}},
        "save_datapoints": None,
        "device": "cpu",
        **more,
    }


def trainer(work: Work, model: nn.Module, folder: Path, **more: Any) -> SupervisedTrainer:
    made = SupervisedTrainer(config(work, model, folder, **more))
    made.progress = Quiet()
    return made


# ---------------------------------------------------------------- the loops written by hand
def bare_training(t: SupervisedTrainer) -> list[float]:
    model, optimizer, criterion = t.network, t.optimizer, nn.CrossEntropyLoss()
    model.train()
    losses = []
    for batch in t.train_loader:
        loss = criterion(model(batch["inputs"]), batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


@torch.no_grad()
def bare_validation(t: SupervisedTrainer, forward: Callable[[torch.Tensor], Any]) -> list[dict[str, torch.Tensor]]:
    t.network.eval()
    return [t.metric({"outputs": forward(batch["inputs"]), "labels": batch["labels"]}) for batch in t.val_loader]


def bare_epoch(t: SupervisedTrainer) -> None:
    bare_training(t)
    bare_validation(t, t.network)
    state = {"model": t.network.state_dict(), "optimizer": t.optimizer.state_dict()}
    torch.save(state, t.work_dir / "bare.pt")


def check_same(t: SupervisedTrainer) -> None:
    """Both loops, from the same weights and seed, end with the same weights."""
    start = copy.deepcopy((t.network.state_dict(), t.optimizer.state_dict()))

    def weights(train: Callable[[], Any]) -> dict[str, torch.Tensor]:
        t.network.load_state_dict(start[0])
        t.optimizer.load_state_dict(copy.deepcopy(start[1]))
        t._seed("train", 0, t.train_loader)
        train()
        return copy.deepcopy(t.network.state_dict())

    a, b = weights(t._train_epoch_), weights(partial(bare_training, t))
    assert all(torch.equal(a[name], b[name]) for name in a), "the two loops do not compute the same"


# ---------------------------------------------------------------- training
def compare_training(work: Work, folder: Path, rounds: int) -> dict[str, Comparison]:
    t = trainer(work, work.model(), folder)
    check_same(t)

    def shown(progress: Any) -> Cost:
        t.progress = progress
        return measure.cost_of(t._train_epoch_) / work.train_steps

    blocks = {
        BARE: lambda: measure.cost_of(partial(bare_training, t)) / work.train_steps,
        TRAINER: lambda: shown(Quiet()),
        BAR: lambda: shown(terminal_bar()),
    }
    return measure.interleave(blocks, baseline=BARE, rounds=rounds)


def compare_epochs(work: Work, folder: Path, rounds: int) -> dict[str, Comparison]:
    """Whole epochs, of ``train_steps`` and ``val_steps``, with scores and checkpoint on disk."""
    t = trainer(work, work.model(), folder)

    def whole() -> Cost:
        t.folder = RunFolder(folder, job="train")  # progress.json must not grow from block to block
        return measure.cost_of(t._epoch_)

    blocks = {BARE: lambda: measure.cost_of(partial(bare_epoch, t)), TRAINER: whole}
    return measure.interleave(blocks, baseline=BARE, rounds=rounds)


# ---------------------------------------------------------------- validation
def debugger(kind: type) -> dict[str, Any]:
    debuggers = [{"name": n, "debugger_config": {"class": kind, "args": {"layer_name": n}}} for n in STAGES]
    return {"class": SequentialDebugger, "args": {"debuggers_config": debuggers}}


def validation_block(t: SupervisedTrainer, *, look: bool, steps: int) -> Cost:
    """The loop until the kernel has the debugger's bytes; opening and closing its pages belongs to the epoch's end."""
    t.checkpoint_indices = [t.epoch] if look else []
    t._before_val_loop()

    def timed() -> None:
        t._eval_loop(t.val_loader, "validation")
        assert t.debugger is not None and (not look or t.debugger.flush()), "records were lost"

    cost = measure.cost_of(timed)
    t._after_val_loop_()
    return cost / steps


class Raw(RawAsync):
    def hand_over(self) -> None:
        """What `step` does after the model has run."""
        self._queue.put(self._seen)
        self._seen = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(x)
        self.hand_over()
        return outputs


class RawTrainer(SupervisedTrainer):
    """The trainer with the raw write in the place of a debugger."""

    raw: Raw

    def _eval_step(self, datapoint: dict[str, Any]) -> None:
        super()._eval_step(datapoint)
        self.raw.hand_over()


def raw_block(raw: Raw, loop: Callable[[], Any], steps: int) -> Cost:
    """A loop that hands over, until the kernel has the bytes."""
    raw.switch(on=True)

    def timed() -> None:
        loop()
        raw.drain()

    cost = measure.cost_of(timed)
    raw.switch(on=False)
    raw.tidy()
    return cost / steps


def raw_validation_block(t: RawTrainer, steps: int) -> Cost:
    t.checkpoint_indices = []
    t._before_val_loop()
    cost = raw_block(t.raw, partial(t._eval_loop, t.val_loader, "validation"), steps)
    t._after_val_loop_()
    return cost


def compare_validation(work: Work, folder: Path, rounds: int) -> dict[str, Comparison]:
    """All against the bare loop, for the table; under `BESIDE`, what is promised: the trainer against the bare loop,
    and a debugger in the trainer against the raw write in it, in turn and with nothing else between."""
    rounds = rounds if work.val_batch == 1 else max(2, rounds // 3)
    model = resnet18()
    maps = trainer(work, model, folder / "maps", debugger=debugger(Map))
    statistics = trainer(work, model, folder / "statistics", debugger=debugger(FeatureMapDebugger))
    kept = trainer(work, model, folder / "kept", debugger=debugger(FeatureMapDebugger), save_datapoints=2000)
    kept.epoch = 1  # inputs and labels are kept in the first epoch only
    inside = RawTrainer(config(work, model, folder / "inside"))
    inside.progress, inside.raw = Quiet(), Raw(model, folder / "raw")
    steps = work.val_steps

    blocks: dict[str, Callable[[], Cost]] = {
        BARE: lambda: measure.cost_of(partial(bare_validation, maps, model)) / steps,
        RAW: partial(raw_block, inside.raw, partial(bare_validation, maps, inside.raw.forward), steps),
        DISABLED: partial(validation_block, maps, look=False, steps=steps),
        RAW_INSIDE: partial(raw_validation_block, inside, steps),
        MAPS: partial(validation_block, maps, look=True, steps=steps),
        STATISTICS: partial(validation_block, statistics, look=True, steps=steps),
        KEPT: partial(validation_block, kept, look=True, steps=steps),
    }

    def beside(baseline: str, *names: str) -> dict[str, Comparison]:
        found = measure.interleave({n: blocks[n] for n in (baseline, *names)}, baseline=baseline, rounds=rounds)
        return {BESIDE + name: found[name] for name in names}

    try:
        found = measure.interleave(blocks, baseline=BARE, rounds=max(2, rounds // 3))
        return {**found, **beside(BARE, DISABLED), **beside(RAW_INSIDE, MAPS, STATISTICS)}
    finally:
        inside.raw.close()
        for t in (maps, statistics, kept, inside):
            t._close()


# ---------------------------------------------------------------- tables
def report(title: str, found: dict[str, Comparison], unit: str = "a step") -> None:
    floor = found[BARE].wall
    headers = ["candidate", "time / bare", "mean", "best", "CPU / bare", f"us added {unit}", f"ms {unit}"]
    rows = measure.comparison_rows({name: c for name, c in found.items() if not name.startswith(BESIDE)})
    rounds = len(found[BARE].pairs)
    shown = f"{title}; {rounds} rounds; noise floor {floor.low:.3f}-{floor.high:.3f}; {measure.machine()}"
    measure.table(shown, headers, rows)


def training_target(found: dict[str, Comparison]) -> Target:
    c = found[TRAINER]
    note = f"best {c.best:.3f}, CPU {c.cpu.median:.3f}"
    return Target(f"training, {SMALL.name}, over the bare loop", c.wall, ALLOWED, note=note)


def validation_targets(found: dict[str, Comparison], work: Work) -> list[Target]:
    """The trainer against the bare loop; a debugger in the trainer against the raw write in it."""
    off = found[BESIDE + DISABLED]

    def over_raw(name: str, allowed: float) -> Target:
        ours, scale = found[BESIDE + name], found[RAW_INSIDE].wall.median  # so that it is a share of the bare loop
        over = Spread.of([(ratio - 1) * scale for ratio in ours.ratios])
        whole = [a - b for a, b in zip(found[name].ratios, found[RAW].ratios, strict=True)]
        note = f"CPU {ours.cpu.median - 1:+.3f}; the trainer's own share included {Spread.of(whole).median:+.3f}"
        return Target(f"validation, {work.name}, {name}, above the raw write beside it", over, allowed, note=note)

    note = f"best {off.best:.3f}, CPU {off.cpu.median:.3f}"
    disabled = Target(f"validation, {work.name}, {DISABLED}, over the bare loop", off.wall, ALLOWED, note=note)
    return [disabled, over_raw(MAPS, 0.02), over_raw(STATISTICS, 0.03)]


# ---------------------------------------------------------------- command line
def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="a third of it at batch 16")
    parser.add_argument("--only", choices=["training", "epoch", "validation"], action="append", help="repeatable")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (0: as torch chooses)")
    parser.add_argument("--dir", help="where the scratch folder is made")
    parser.add_argument("--json", help="append the raw figures to this file")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    measure.pin_allocator()
    only = options.only or ["training", "epoch", "validation"]
    reached: list[Target] = []

    def measured(compare: Callable[[Work, Path, int], dict[str, Comparison]], work: Work) -> dict[str, Comparison]:
        with measure.scratch(options.dir) as folder:
            found = compare(work, folder, options.rounds)
        pairs = {name: [asdict(p) for p in c.pairs] for name, c in found.items()}
        measure.append_json(options.json, {"bench": compare.__name__, "work": work.name, "pairs": pairs})
        return found

    if "training" in only:
        for work in (SMALL, TINY, NOTHING):
            found = measured(compare_training, work)
            report(f"Training, {work.name}, {work.train_steps} steps", found)
            reached += [training_target(found)] if work is SMALL else []
    if "epoch" in only:
        found = measured(compare_epochs, TINY)
        title = f"Whole epochs, {TINY.name}, {TINY.train_steps} steps and {TINY.val_steps} of validation"
        report(title, found, "an epoch")
    if "validation" in only:
        for work in CAPTURED:
            found = measured(compare_validation, work)
            report(f"Validation, {work.name}, {work.val_steps} steps", found)
            reached += validation_targets(found, work)
    print("\nTargets:", *reached, sep="\n")


if __name__ == "__main__":
    main()
