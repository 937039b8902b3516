"""Measuring on a noisy machine: interleaved blocks, ratios to the baseline beside them, medians with quartiles, memory.

Owns how something is measured and printed; what is measured is in the benchmarks. See README.md for the reasons.
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
    """The median of many values, their quartiles, and where the median itself lies with 95 % confidence."""

    low: float
    median: float
    high: float
    sure: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        n = len(ordered)
        low, median, high = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else ordered * 3
        reach = 0.98 * n**0.5  # ranks: the median's confidence interval whatever the distribution
        sure = ordered[max(0, int(n / 2 - reach))], ordered[min(n - 1, int(n / 2 + reach))]
        return cls(low, median, high, sure)

    def __str__(self) -> str:
        digits = 3 if self.median < 3 else 2
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}-{self.high:.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Pair:
    """A block, and the baseline blocks right before and right after it."""

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
        """All blocks over all their baselines: what happens now and then (a page's close) is in here, so is noise."""
        return sum(p.block.wall_s for p in self.pairs) / sum(p.base.wall_s for p in self.pairs)

    @property
    def best(self) -> float:
        """Fastest block over fastest baseline: what is left when nobody disturbs."""
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
    """Run every block once a round in shuffled order, each between two blocks of the baseline.

    The baseline is measured as a candidate, too: its ratio to its own neighbours is the noise floor.
    """
    rng = random.Random(seed)
    pairs: dict[str, list[Pair]] = {name: [] for name in blocks}

    def run(name: str) -> Cost:
        gc.collect()
        return blocks[name]()

    for name in blocks:  # first use: imports, allocations, files
        run(name)
    gc.freeze()  # what is there now need not be looked through before every block
    before = run(baseline)
    for _ in range(rounds):
        order = [*blocks]
        rng.shuffle(order)
        for name in order:
            block = run(name)
            after = run(baseline)
            pairs[name].append(Pair(block, before, after))
            before = after
    return {name: Comparison(found) for name, found in pairs.items()}


# ---------------------------------------------------------------- memory
def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


class PeakMemory:
    """How far resident memory rises above its present level. Linux only."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again here
        self._start = _status("VmRSS")

    @property
    def growth(self) -> int:
        """Bytes between the level at the start and the highest since."""
        return _status("VmHWM") - self._start


PINNED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""What keeps glibc from giving memory back to the kernel and taking it again."""


def pin_allocator() -> None:
    """Begin this process anew with an allocator that keeps its memory: without it the luck of the memory's layout
    decides whether a step has no page faults or seven hundred, for the baseline as for the candidates."""
    if sys.platform == "linux" and not PINNED.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PINNED})


# ---------------------------------------------------------------- files and processes
@contextmanager
def scratch(parent: str | None) -> Iterator[Path]:
    """A temporary folder that is gone afterwards, also when the process is asked to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="endoscope_bench_", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync(folder: Path, *, evict: bool = False) -> None:
    """Have the disk hold every file of a folder; with ``evict`` only the disk, as far as the system lets us."""
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
    """Run ``script`` again by itself; its last line of output is JSON."""
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
    """A figure that we promise, and whether it is reached: the median counts, its confidence interval is told."""

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
    """One JSON object a line, for whoever wants to look closer."""
    if path:
        with open(path, "a") as f:
            f.write(json.dumps(result) + "\n")


def comparison_rows(found: Mapping[str, Comparison]) -> list[tuple[Any, ...]]:
    """A row for each candidate: time and CPU over the baseline's, what is added to a step, and its length."""
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
        for name, c in found.items()
    ]
