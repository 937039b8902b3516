"""C, D. Writing a page of 96 MB, reading one record of it, and one datapoint out of fifty pages in a fresh process."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import measure
import numpy as np
import torch
from measure import Comparison, Cost, Spread, Target
from safetensors.torch import save_file
from torch import Tensor

from endoscope import BaseDebugger, SequentialDebugger, load_debug_outputs
from endoscope.capturing.snapshot import Snapshot
from endoscope.pages import sink

SHAPES = {"stage1": (64, 56, 56), "stage2": (128, 28, 28), "stage3": (256, 14, 14), "stage4": (512, 7, 7)}
MAP_BYTES = {name: 4 * int(np.prod(shape)) for name, shape in SHAPES.items()}
RECORD_BYTES = sum(MAP_BYTES.values())
RECORDS = 64
MIB = 1 << 20
READS = 20
"""Reads per block: one takes a fraction of a millisecond."""

Record = dict[str, Any]


def make_page() -> list[Record]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "maps": {name: torch.randn(shape, generator=generator).relu_() for name, shape in SHAPES.items()},
            "values": torch.randn(100, generator=generator).tolist(),
            "statistics": {f"{name}.{kind}": float(i) for name in SHAPES for kind in ("mean", "std", "max")},
            "about": {"path": f"images/class_{i % 10}/{i:08d}.png", "model": "resnet18", "split": "validation"},
        }
        for i in range(RECORDS)
    ]


def without_maps(record: Record) -> Record:
    return {k: v for k, v in record.items() if k != "maps"}


# ---------------------------------------------------------------- writing
class Given(BaseDebugger):
    """Returns the record that the datapoint contains."""

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Record:
        record: Record = datapoint["record"]
        return record


@contextlib.contextmanager
def debugger(folder: Path, *, page_bytes: int) -> Iterator[Callable[[int, Record], None]]:
    """Yields a function that stores a record under an index."""
    config = [{"name": "record", "debugger_config": {"class": Given, "args": {}}}]
    size_mb = page_bytes / MIB
    with SequentialDebugger(config, torch.nn.Identity(), page_size_mb=size_mb, output_dir=folder) as sequential:
        sequential.enabled = True

        def put(idx: int, record: Record) -> None:
            sequential({"meta_info": {"idx": idx}, "record": record})

        yield put


def write_raw(folder: Path, page: Sequence[Record], *, synced: bool = False) -> None:
    folder.mkdir()
    fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
    for record in page:
        written = os.writev(fd, [t.numpy() for t in record["maps"].values()])
        assert written == RECORD_BYTES
    os.write(fd, json.dumps([*map(without_maps, page)]).encode())
    if synced:
        os.fsync(fd)
    os.close(fd)


def write_page(folder: Path, page: Sequence[Record]) -> None:
    folder.mkdir()
    pages = sink.SafetensorsSink(folder, page_size=2 * RECORDS * RECORD_BYTES, rank=None)
    for idx, record in enumerate(page):
        pages.append(sink.Captured(idx, {"record": Snapshot(record, [])}, {}, RECORD_BYTES))
        pages.write()
    pages.close(dropped=0)


def write_through_debugger(folder: Path, page: Sequence[Record]) -> None:
    with debugger(folder, page_bytes=2 * RECORDS * RECORD_BYTES) as put:
        for idx, record in enumerate(page):
            put(idx, record)


def write_safetensors(folder: Path, page: Sequence[Record]) -> None:
    folder.mkdir()
    maps: dict[str, Tensor] = {f"{i}/{name}": t for i, r in enumerate(page) for name, t in r["maps"].items()}
    about = {str(i): json.dumps(without_maps(r)) for i, r in enumerate(page)}
    save_file(maps, folder / "page.safetensors", metadata=about)


def unsynced(write: Callable[[Path, Sequence[Record]], None]) -> Callable[[Path, Sequence[Record]], None]:
    """The same without the disk, neither synced nor written back early: what our own code costs."""

    def write_unsynced(folder: Path, page: Sequence[Record]) -> None:
        with mock.patch("os.fsync"), mock.patch("endoscope.pages.page._begin_writeback"):
            write(folder, page)

    return write_unsynced


RAW, RAW_SYNCED, SAFETENSORS = "raw writev (the limit)", "raw writev + fsync", "safetensors.save_file"
PAGE, PAGE_UNSYNCED = "ours, page writer", "ours, page writer, no disk"
WHOLE, WHOLE_UNSYNCED = "ours, SequentialDebugger", "ours, SequentialDebugger, no disk"
WRITERS: dict[str, Callable[[Path, Sequence[Record]], None]] = {
    RAW: write_raw,
    RAW_SYNCED: partial(write_raw, synced=True),
    SAFETENSORS: write_safetensors,
    PAGE_UNSYNCED: unsynced(write_page),
    PAGE: write_page,
    WHOLE_UNSYNCED: unsynced(write_through_debugger),
    WHOLE: write_through_debugger,
}


def compare_writing(parent: Path, page: Sequence[Record], rounds: int) -> dict[str, Comparison]:
    folder = parent / "written"

    def block(write: Callable[[Path, Sequence[Record]], None]) -> Cost:
        os.sync()  # no earlier bytes are still being written
        cost = measure.cost_of(lambda: write(folder, page))
        shutil.rmtree(folder)
        return cost

    blocks = {name: partial(block, write) for name, write in WRITERS.items()}
    return measure.interleave(blocks, baseline=RAW, rounds=rounds)


def report_writing(figures: Mapping[str, Comparison]) -> list[Target]:
    def over_synced(c: Comparison) -> Spread:
        """Relative to raw with its fsync, round by round."""
        return Spread.of([a / b for a, b in zip(c.ratios, figures[RAW_SYNCED].ratios, strict=True)])

    def row(name: str, c: Comparison) -> Sequence[object]:
        return name, f"{c.seconds.median * 1e3:.0f}", c.wall, f"{c.best:.2f}", over_synced(c), c.cpu

    title = f"C. Writing a page of {RECORDS * RECORD_BYTES / 1e6:.0f} MB; {measure.machine()}"
    headers = ["way", "ms", "time / raw", "best", "time / raw + fsync", "CPU / raw"]
    measure.table(title, headers, [row(name, c) for name, c in figures.items()])

    def both(name: str, unsynced_name: str, limit: float) -> list[Target]:
        return [
            Target(f"{name}, neither waiting for the disk, over raw", figures[unsynced_name].wall, limit),
            Target(f"{name}, both with fsync, over raw", over_synced(figures[name]), limit),
            Target(f"{name}, with fsync, over raw without", figures[name].wall, limit),
        ]

    return [*both(PAGE, PAGE_UNSYNCED, 1.5), *both(WHOLE, WHOLE_UNSYNCED, 2.2)]


# ---------------------------------------------------------------- reading one record
def touch(maps: Mapping[str, Any]) -> None:
    """Read one value of every 4 KiB of every map, so that memory maps are loaded, too."""
    for values in maps.values():
        np.asarray(values).reshape(-1)[::1024].sum()


def read_raw(path: Path, i: int) -> dict[str, Any]:
    fd = os.open(path, os.O_RDONLY)
    data = np.empty(RECORD_BYTES, np.uint8)
    os.preadv(fd, [data], i * RECORD_BYTES)  # type: ignore[list-item]
    os.close(fd)
    maps, at = {}, 0
    for name, shape in SHAPES.items():
        maps[name] = data[at : at + MAP_BYTES[name]].view(np.float32).reshape(shape)
        at += MAP_BYTES[name]
    return maps


PREAD, OPEN, OPENING = "raw pread (the limit)", "ours, run open", "ours, opening the folder each time"


def compare_reading(parent: Path, page: Sequence[Record], rounds: int) -> dict[str, Comparison]:
    write_raw(parent / "raw", page)
    write_through_debugger(parent / "ours", page)
    outputs = load_debug_outputs(parent / "ours")
    readers: dict[str, Callable[[int], Any]] = {
        PREAD: lambda i: read_raw(parent / "raw" / "raw", i),
        OPEN: lambda i: outputs[i]["record"]["maps"],
        OPENING: lambda i: load_debug_outputs(parent / "ours")[i]["record"]["maps"],
    }
    for name, read in readers.items():
        maps = read(7)
        same = all(np.array_equal(np.asarray(maps[k]), t.numpy()) for k, t in page[7]["maps"].items())
        assert same, f"{name} does not return what was written"
    rng = random.Random(0)

    def block(read: Callable[[int], Any]) -> Cost:
        chosen = rng.sample(range(RECORDS), READS)

        def timed() -> None:
            for i in chosen:
                touch(read(i))

        return measure.cost_of(timed) / READS

    return measure.interleave({n: partial(block, r) for n, r in readers.items()}, baseline=PREAD, rounds=rounds)


def report_reading(figures: Mapping[str, Comparison]) -> list[Target]:
    rows = [(n, f"{c.seconds.median * 1e3:.3f}", c.wall, f"{c.best:.2f}", c.cpu) for n, c in figures.items()]
    title = f"C. Reading one record of {RECORD_BYTES / 1e6:.1f} MB, warm"
    measure.table(title, ["way", "ms", "time / raw", "best", "CPU / raw"], rows)
    return [Target(f"reading, {n}, over raw", figures[n].wall, limit) for n, limit in ((OPEN, 2.5), (OPENING, 3.2))]


# ---------------------------------------------------------------- one datapoint out of many pages
FEW = 10
"""Pages of the smaller run. Finding a datapoint must not take longer in the larger one."""


def write_run(folder: Path, page: Sequence[Record], pages: int) -> None:
    # A hundredth more than the tensors: the lines and the header of 64 records fit, a 65th record does not.
    with debugger(folder, page_bytes=int(RECORDS * RECORD_BYTES * 1.01)) as put:
        for idx in range(pages * RECORDS):
            put(idx, page[idx % RECORDS])
    assert len([*folder.glob("page_*.safetensors")]) == pages, "unexpected number of records per page"


def read_in_this_process(folder: str, first: int, then: int) -> dict[str, float]:
    """Time and memory of opening a run and reading a datapoint, and of the next datapoint, without imports."""
    memory = measure.PeakMemory()
    start = time.perf_counter()
    outputs = load_debug_outputs(folder)
    record = outputs[first]["record"]
    touch(record["maps"])
    opened = time.perf_counter() - start
    grown = memory.growth
    del record
    start = time.perf_counter()
    touch(outputs[then]["record"]["maps"])
    return {"first_s": opened, "next_s": time.perf_counter() - start, "memory": grown, "memory_next": memory.growth}


def compare_runs(parent: Path, page: Sequence[Record], pages: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The figures of each round, by ``"50 pages, cold"`` and so on."""
    runs = {n: parent / f"run_{n}" for n in sorted({min(FEW, pages), pages})}
    for n, folder in runs.items():
        write_run(folder, page, n)
        measure.sync(folder)
    rng = random.Random(0)
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for n, folder in rng.sample([*runs.items()], len(runs)):
            first, then = rng.sample(range(n * RECORDS), 2)
            for state in ("cold", "warm"):  # the same datapoints: after the cold read they are warm
                if state == "cold":
                    measure.sync(folder, evict=True)
                arguments = ("--read", folder, "--datapoints", first, then)
                for key, value in measure.in_fresh_process(__file__, *arguments).items():
                    figures.setdefault(f"{n} pages, {state}", {}).setdefault(key, []).append(value)
    return figures


def report_runs(figures: Mapping[str, Mapping[str, list[float]]], pages: int) -> list[Target]:
    def spread(of: str, key: str, unit: float) -> Spread:
        return Spread.of([v / unit for v in figures[of][key]])

    ms, mb = 1e-3, 1e6
    keys = (("first_s", ms), ("next_s", ms), ("memory", mb), ("memory_next", mb))
    rows = [(of, *(spread(of, key, unit) for key, unit in keys)) for of in sorted(figures)]
    headers = ["run", "first datapoint ms", "next ms", "memory MB", "after the next MB"]
    measure.table("D. One datapoint out of many pages, a fresh process each", headers, rows)
    limits = {("warm", "first_s"): 5.0, ("warm", "next_s"): 2.0, ("cold", "first_s"): 10.0, ("cold", "next_s"): 5.0}
    label = {"first_s": "first datapoint", "next_s": "next datapoint"}
    targets = [
        Target(f"{label[key]} of {pages} pages, {state}", spread(f"{pages} pages, {state}", key, ms), limit, " ms")
        for (state, key), limit in limits.items()
    ]
    records = spread(f"{pages} pages, warm", "memory", RECORD_BYTES)
    targets.append(Target(f"memory of the first of {pages} pages, in records", records, 3.0))
    if pages > FEW:
        few = spread(f"{FEW} pages, warm", "first_s", 1).median
        ratio = spread(f"{pages} pages, warm", "first_s", few)
        targets.append(Target(f"first datapoint of {pages} pages over that of {FEW}, warm", ratio, 1.25))
    return targets


# ---------------------------------------------------------------- command line
def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pages", type=int, default=50, help="of the larger run, 96 MB each; 0 skips D")
    parser.add_argument("--only", choices=["write", "read", "run"], help="one part; all by default")
    parser.add_argument("--dir", help="where the scratch folder is made")
    parser.add_argument("--json", help="append the raw figures to this file")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--datapoints", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if options.read:
        print(json.dumps(read_in_this_process(options.read, *options.datapoints)))
        return
    page = make_page()
    results: list[Target] = []
    parts = (("write", compare_writing, report_writing), ("read", compare_reading, report_reading))
    with measure.scratch(options.dir) as folder:
        for part, compare, report in parts:
            if options.only in (None, part):
                figures = compare(folder, page, options.rounds)
                results += report(figures)
                raw = {name: [asdict(p) for p in c.pairs] for name, c in figures.items()}
                measure.append_json(options.json, {"bench": f"storage, {part}", "pairs": raw})
        if options.pages and options.only in (None, "run"):
            runs = compare_runs(folder, page, options.pages, options.rounds)
            results += report_runs(runs, options.pages)
            measure.append_json(options.json, {"bench": "storage, run", "pages": options.pages, "figures": runs})
    print("\nTargets:", *results, sep="\n")


if __name__ == "__main__":
    main()
