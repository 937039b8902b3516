"""Measuring on a noisy machine: interleaved blocks, ratios to a baseline, medians with quartiles, memory.

Owns how things are measured and printed; the benchmarks decide what is measured. README.md has the reasons.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


# ---------------------------------------------------------------- time
@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and CPU seconds of one block; CPU time is that of all threads."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __truediv__(self, n: float) -> Cost:
        return Cost(self.wall_s / n, self.cpu_s / n)


def cost_of(action: Callable[[], Any]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of many values, their quartiles, and the 95 % confidence interval of the median."""

    low: float
    median: float
    high: float
    sure: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        n = len(ordered)
        low, median, high = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else ordered * 3
        reach = 0.98 * n**0.5  # in ranks, for any distribution
        sure = ordered[max(0, int(n / 2 - reach))], ordered[min(n - 1, int(n / 2 + reach))]
        return cls(low, median, high, sure)

    def __str__(self) -> str:
        digits = 3 if self.median < 3 else 2
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}-{self.high:.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Pair:
    """A block, and the blocks of the baseline before and after it."""

    block: Cost
    before: Cost
    after: Cost

    @property
    def base(self) -> Cost:
        return (self.before + self.after) / 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """One candidate over all rounds."""

    pairs: Sequence[Pair]

    @property
    def ratios(self) -> list[float]:
        return [p.block.wall_s / p.base.wall_s for p in self.pairs]

    @property
    def wall(self) -> Spread:
        return Spread.of(self.ratios)

    @property
    def cpu(self) -> Spread:
        return Spread.of([p.block.cpu_s / p.base.cpu_s for p in self.pairs])

    @property
    def mean(self) -> float:
        """All blocks over all their baselines. Includes rare events, such as closing a page, and noise."""
        return sum(p.block.wall_s for p in self.pairs) / sum(p.base.wall_s for p in self.pairs)

    @property
    def best(self) -> float:
        """The fastest block over the fastest block of the baseline: the ratio without disturbances."""
        return min(p.block.wall_s for p in self.pairs) / min(p.after.wall_s for p in self.pairs)

    @property
    def added_s(self) -> Spread:
        return Spread.of([p.block.wall_s - p.base.wall_s for p in self.pairs])

    @property
    def seconds(self) -> Spread:
        return Spread.of([p.block.wall_s for p in self.pairs])


def interleave(
    blocks: Mapping[str, Callable[[], Cost]], *, baseline: str, rounds: int, seed: int = 0
) -> dict[str, Comparison]:
    """Run every block once per round in shuffled order, each between two blocks of the baseline.

    The baseline is also a candidate: its ratio to its own neighbours is the noise floor.
    """
    rng = random.Random(seed)
    pairs: dict[str, list[Pair]] = {name: [] for name in blocks}

    def run(name: str) -> Cost:
        gc.collect()
        return blocks[name]()

    for name in blocks:  # first use: imports, allocations, files
        run(name)
    gc.freeze()  # objects that exist now are not collected before every block
    before = run(baseline)
    for _ in range(rounds):
        order = [*blocks]
        rng.shuffle(order)
        for name in order:
            block = run(name)
            after = run(baseline)
            pairs[name].append(Pair(block, before, after))
            before = after
    return {name: Comparison(of_name) for name, of_name in pairs.items()}


# ---------------------------------------------------------------- memory
def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


class PeakMemory:
    """How far resident memory rises above its current level. Linux only."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        self._start = _status("VmRSS")

    @property
    def growth(self) -> int:
        """Bytes between the level at the start and the highest since."""
        return _status("VmHWM") - self._start


PINNED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Keeps glibc from returning memory to the kernel and requesting it again."""


def pin_allocator() -> None:
    """Restart this process with an allocator that keeps its memory. Otherwise the memory layout decides whether a step
    has no page faults or seven hundred, for the baseline and for the candidates."""
    if sys.platform == "linux" and not PINNED.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PINNED})


# ---------------------------------------------------------------- files and processes
@contextmanager
def scratch(parent: str | None) -> Iterator[Path]:
    """A temporary folder that is removed afterwards, also on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="endoscope_bench_", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync(folder: Path, *, evict: bool = False) -> None:
    """Sync every file of a folder to the disk; ``evict`` also drops them from the page cache, if the system allows."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                if evict:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def in_fresh_process(script: str, *arguments: object) -> dict[str, Any]:
    """Run ``script`` in a new process; the last line of its output is JSON."""
    usual = {name: value for name, value in os.environ.items() if name not in PINNED}
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=usual)
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(map(str, arguments))} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# ---------------------------------------------------------------- printing
def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[*map(str, row)] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    print(f"\n### {title}\n", *lines, sep="\n", flush=True)


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that we promise, and whether the median reaches it; printed with its confidence interval."""

    what: str
    value: Spread
    limit: float
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        low, high = self.value.sure
        verdict = "pass" if self.value.median <= self.limit else "FAIL"
        if low <= self.limit < high:
            verdict += ", unsure"
        interval = f"; 95 %: {low:.3f} to {high:.3f}" if low < high else ""
        note = f"; {self.note}" if self.note else ""
        return f"- {verdict}: {self.what}: {self.value.median:.3f}{self.unit}, at most {self.limit:.3f}{interval}{note}"


def machine() -> str:
    import torch

    threads = torch.get_num_threads()
    return f"Python {platform.python_version()}, torch {torch.__version__}, {threads} of {os.cpu_count()} cores"


def append_json(path: str | None, result: Mapping[str, Any]) -> None:
    """Append one JSON object as a line."""
    if path:
        with open(path, "a") as f:
            f.write(json.dumps(result) + "\n")


def comparison_rows(comparisons: Mapping[str, Comparison]) -> list[tuple[Any, ...]]:
    """One row per candidate: time and CPU over the baseline, what is added to a step, and the length of a step."""
    return [
        (
            name,
            c.wall,
            f"{c.mean:.3f}",
            f"{c.best:.3f}",
            c.cpu,
            f"{c.added_s.median * 1e6:+.0f}",
            f"{c.seconds.median * 1e3:.2f}",
        )
        for name, c in comparisons.items()
    ]
