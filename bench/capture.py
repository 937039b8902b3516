"""A. What capturing four stages of a ResNet-18 to disk costs an evaluation loop, and whether its memory stays flat.

A block is a few steps of the loop, until the kernel has everything that was captured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import measure
import torch
from measure import Comparison, Cost, Spread, Target
from models import STAGES, ResNet18, resnet18
from torch import Tensor

from endoscope import ForwardDebugger, SequentialDebugger
from endoscope.debuggers import FeatureMapDebugger

MB = 1e6
PAGE_SIZE = 100 << 20
LENGTHS = (400, 1600)
WARM_UP = 30
FLAT_MB = 5.0
"""Tolerance for the allocator. Keeping the maps would be 590 MB between the two lengths."""


# ---------------------------------------------------------------- candidates
class NoCapture:
    """The baseline, and the interface of a candidate."""

    def __init__(self, model: ResNet18, folder: Path) -> None:
        self.model = model
        self.folder = folder
        folder.mkdir()

    def switch(self, on: bool) -> None:
        """Attach to the model, or detach from it."""

    def step(self, idx: list[int], x: Tensor) -> None:
        self.model(x)

    def drain(self) -> None:
        """Return when the kernel has everything."""

    def tidy(self) -> None:
        """Between blocks, not timed: remove all files but the newest, and sync it, so that no disk work is left."""
        numbered = {path: int(digits[0]) for path in self.folder.iterdir() if (digits := re.findall(r"\d+", path.name))}
        for path, number in numbered.items():
            if number < max(numbered.values()):
                path.unlink()
        measure.sync(self.folder)

    def close(self) -> None:
        pass


class RawAsync(NoCapture):
    """The limit: hooks keep the tensors without a copy, and one thread writes their bytes and nothing else."""

    def __init__(self, model: ResNet18, folder: Path) -> None:
        super().__init__(model, folder)
        self._queue: queue.SimpleQueue[list[Tensor] | threading.Event | None] = queue.SimpleQueue()
        self._fd, self._size, self._number = -1, PAGE_SIZE, 0
        self._seen: list[Tensor] = []
        self._hooks: list[Any] = []

    def switch(self, on: bool) -> None:
        """The thread lives as long as the hooks, so that it is not alive in the blocks of other candidates."""
        if on:
            layers = [self.model.get_submodule(name) for name in STAGES]
            self._hooks = [layer.register_forward_hook(self._hook) for layer in layers]
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        elif self._hooks:
            while self._hooks:
                self._hooks.pop().remove()
            self._queue.put(None)
            self._thread.join()

    def _hook(self, module: torch.nn.Module, input: Any, output: Tensor) -> None:
        self._seen.append(output.detach())

    def step(self, idx: list[int], x: Tensor) -> None:
        self.model(x)
        self._queue.put(self._seen)
        self._seen = []

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._size >= PAGE_SIZE:  # as large as our pages: fresh page-cache memory costs more than reused
                self._close_file()
                self._fd, self._size = os.open(self.folder / f"raw_{self._number}", os.O_WRONLY | os.O_CREAT), 0
                self._number += 1
            self._size += os.writev(self._fd, [t.numpy() for t in item])  # type: ignore[misc]
            del item

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def drain(self) -> None:
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait()

    def close(self) -> None:
        self.switch(on=False)
        self._close_file()


class Map(ForwardDebugger):
    """Stores what the raw write stores: the layer's output, without computing anything."""

    def process_forward(self, module: torch.nn.Module, input: Any, output: Tensor) -> dict[str, Tensor]:
        return {"feature_map": output}


class Ours(NoCapture):
    debugger: type[ForwardDebugger] = Map

    def __init__(self, model: ResNet18, folder: Path) -> None:
        super().__init__(model, folder)
        config = [
            {"name": name, "debugger_config": {"class": self.debugger, "args": {"layer_name": name}}} for name in STAGES
        ]
        self._debugger = SequentialDebugger(config, model, PAGE_SIZE / (1 << 20), output_dir=folder)

    def switch(self, on: bool) -> None:
        self._debugger.enabled = on

    def step(self, idx: list[int], x: Tensor) -> None:
        outputs = self.model(x)
        self._debugger({"inputs": x, "labels": None, "outputs": outputs, "meta_info": {"idx": idx}}, self.model)

    def drain(self) -> None:
        assert self._debugger.flush(), "records were lost"

    def close(self) -> None:
        self._debugger.close()


class OursStatistics(Ours):
    debugger = FeatureMapDebugger


class OursDisabled(Ours):
    def switch(self, on: bool) -> None:
        """Stays off; the loop still calls the debugger."""


BASELINE, RAW, MAPS, STATISTICS, DISABLED = (
    "no capture",
    "raw asynchronous write (the limit)",
    "ours, maps",
    "ours, FeatureMapDebugger",
    "ours, disabled",
)
CANDIDATES: dict[str, type[NoCapture]] = {
    BASELINE: NoCapture,
    RAW: RawAsync,
    MAPS: Ours,
    STATISTICS: OursStatistics,
    DISABLED: OursDisabled,
}


# ---------------------------------------------------------------- time
class Loop:
    """The evaluation loop: a few batches in turn, with indices that continue from block to block."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._inputs = [torch.randn(batch, 3, 128, 128) for _ in range(4)]
        self._next = itertools.count()

    def run(self, candidate: NoCapture, steps: int) -> None:
        for _ in range(steps):
            n = next(self._next)
            idx = [*range(n * self._batch, (n + 1) * self._batch)]
            candidate.step(idx, self._inputs[n % len(self._inputs)])

    def block(self, candidate: NoCapture, steps: int) -> Cost:
        candidate.switch(on=True)
        self.run(candidate, 1)
        candidate.drain()

        def timed() -> None:
            self.run(candidate, steps)
            candidate.drain()

        cost = measure.cost_of(timed)
        candidate.switch(on=False)
        candidate.tidy()
        return cost / steps


Comparisons = dict[str, Comparison]


@torch.no_grad()
def compare(folder: Path, *, batch: int, steps: int, rounds: int) -> tuple[Comparisons, Comparisons]:
    """Every candidate against no capture, and ours against the raw write, whose difference is what we promise."""
    model = resnet18()
    loop = Loop(batch)
    candidates = {name: make(model, folder / f"{k}") for k, (name, make) in enumerate(CANDIDATES.items())}
    try:
        blocks = {name: partial(loop.block, c, steps) for name, c in candidates.items()}
        comparisons = measure.interleave(blocks, baseline=BASELINE, rounds=max(2, rounds // 2))
        writing = {name: blocks[name] for name in (RAW, MAPS, STATISTICS)}
        return comparisons, measure.interleave(writing, baseline=RAW, rounds=rounds)
    finally:
        for c in candidates.values():
            c.close()


def report(comparisons: Comparisons, baseline: str, title: str) -> None:
    floor = comparisons[baseline].wall
    what = (
        f"{len(comparisons[baseline].pairs)} rounds; noise floor {floor.low:.3f}-{floor.high:.3f}; {measure.machine()}"
    )
    short = {BASELINE: "no capture", RAW: "raw"}[baseline]
    headers = ["candidate", f"time / {short}", "mean", "best", f"CPU / {short}", "us added a step", "ms a step"]
    measure.table(f"{title}; {what}", headers, measure.comparison_rows(comparisons))


def targets(comparisons: Comparisons, beside_raw: Comparisons, batch: int) -> list[Target]:
    def over_raw(name: str, allowed: float) -> Target:
        ours, raw = beside_raw[name], comparisons[RAW].wall.median  # turns a share of raw into a share of no capture
        over = Spread.of([(ratio - 1) * raw for ratio in ours.ratios])
        note = f"best {ours.best - 1:+.3f}, CPU {ours.cpu.median - 1:+.3f}"
        return Target(f"batch {batch}, {name}, above the raw write beside it", over, allowed, note=note)

    floor, off = comparisons[BASELINE].wall, comparisons[DISABLED]
    noise = max(floor.high - 1, 1 - floor.low)
    above = Spread.of([r - 1 for r in off.ratios])
    note = f"the limit is the noise floor; CPU {off.cpu.median - 1:+.3f}"
    disabled = Target(f"batch {batch}, {DISABLED}, above no capture", above, noise, note=note)
    maps, statistics = (0.05, 0.06) if batch == 1 else (0.03, 0.04)
    return [over_raw(MAPS, maps), over_raw(STATISTICS, statistics), disabled]


# ---------------------------------------------------------------- memory
@torch.no_grad()
def memory_growth(name: str, datapoints: int, parent: str | None) -> int:
    """How far memory rises over ``datapoints`` after a warm-up. Call it in a fresh process."""
    with measure.scratch(parent) as folder:
        candidate = CANDIDATES[name](resnet18(), folder / "pages")
        loop = Loop(1)
        candidate.switch(on=True)
        loop.run(candidate, WARM_UP)
        candidate.drain()
        memory = measure.PeakMemory()
        loop.run(candidate, datapoints)
        candidate.drain()
        growth = memory.growth
        candidate.close()
    return growth


def report_memory(options: argparse.Namespace) -> tuple[dict[str, list[float]], list[Target]]:
    def growth_mb(name: str, datapoints: int) -> float:
        shared = ["--threads", options.threads, *(["--dir", options.dir] if options.dir else [])]
        answer = measure.in_fresh_process(__file__, "--memory-of", name, "--datapoints", datapoints, *shared)
        return float(answer["growth"]) / MB

    comparisons = {name: [growth_mb(name, n) for n in LENGTHS] for name in (BASELINE, RAW, MAPS, STATISTICS)}
    title = "Memory: rise of the peak over so many datapoints of 0.5 MB, a fresh process each"
    rows = [(name, *(f"{g:+.1f} MB" for g in grown)) for name, grown in comparisons.items()]
    measure.table(title, ["candidate", *(f"{n} datapoints" for n in LENGTHS)], rows)
    base = comparisons[BASELINE]
    longer = {name: (comparisons[name][1] - base[1]) - (comparisons[name][0] - base[0]) for name in (MAPS, STATISTICS)}
    what = f"memory over {LENGTHS[1]} datapoints more than over {LENGTHS[0]}, beyond the baseline's"
    return comparisons, [Target(f"{what}, {name}", Spread.of([more]), FLAT_MB, " MB") for name, more in longer.items()]


# ---------------------------------------------------------------- command line
def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=120, help="at batch 1; a third as many at batch 16")
    parser.add_argument("--steps", type=int, default=24, help="steps per block at batch 1; a sixth as many at batch 16")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (0: as torch chooses)")
    parser.add_argument("--batch", type=int, action="append", help="repeatable; 1 and 16 by default")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--dir", help="where the scratch folder is made")
    parser.add_argument("--json", help="append the raw figures to this file")
    parser.add_argument("--memory-of", choices=[*CANDIDATES], help=argparse.SUPPRESS)
    parser.add_argument("--datapoints", type=int, default=LENGTHS[0], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps({"growth": memory_growth(options.memory_of, options.datapoints, options.dir)}))
        return
    measure.pin_allocator()
    results: list[Target] = []
    for batch in options.batch or [1, 16]:
        steps = options.steps if batch == 1 else max(2, options.steps // 6)
        rounds = options.rounds if batch == 1 else max(2, options.rounds // 3)
        with measure.scratch(options.dir) as folder:
            comparisons, beside_raw = compare(folder, batch=batch, steps=steps, rounds=rounds)
        title = f"A. Capture, batch {batch}, 128 x 128; blocks of {steps} steps"
        for each, baseline in ((comparisons, BASELINE), (beside_raw, RAW)):
            report(each, baseline, title)
            raw = {name: [asdict(p) for p in c.pairs] for name, c in each.items()}
            about = {"bench": "capture", "batch": batch, "steps": steps, "baseline": baseline}
            measure.append_json(options.json, {**about, "pairs": raw})
        results += targets(comparisons, beside_raw, batch)
    if not options.no_memory:
        grown, flat = report_memory(options)
        results += flat
        measure.append_json(options.json, {"bench": "capture memory", "growth_mb": grown})
    print("\nTargets:", *results, sep="\n")


if __name__ == "__main__":
    main()
