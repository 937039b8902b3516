"""The viewer in a real browser: how long a person waits, and what memory the server needs."""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure
import viewer_run
from viewer_run import Size

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
WINDOW = {"width": 1600, "height": 1000}
MEMORY_FIRST, MEMORY_NEXT = 200, 400
"""Datapoints that are looked at before memory is measured, and afterwards."""
_MB = 1_000_000

# Runs in every page before its own scripts. A time begins with the browser's own time stamp of the click or key, and
# ends after the frame in which what was waited for is painted.
PROBE = """
performance.setResourceTimingBufferSize(1e6);
window.bench = {start: 0, drawn: 0};
for (const kind of ["click", "keydown", "change", "input"])
  addEventListener(kind, (event) => { bench.start = event.timeStamp; }, {capture: true});
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...given) {
  bench.drawn = performance.now();
  return put.apply(this, given);
};
bench.arm = () => { bench.start = Infinity; bench.drawn = 0; };
bench.painted = (is) => new Promise((done, fail) => {
  const began = performance.now();
  const look = () => {
    if (performance.now() > began + 30000) { fail(new Error(`never: ${is}`)); return; }
    if (!is()) { requestAnimationFrame(look); return; }
    const after = new MessageChannel();
    after.port1.onmessage = () => done(performance.now());
    after.port2.postMessage(0);
  };
  requestAnimationFrame(look);
});
bench.mapped = (epoch, metric) => {
  const shown = document.querySelector("canvas").dataset;
  return bench.drawn > bench.start && shown.epoch === String(epoch) && shown.metric === metric;
};
bench.shown = () => `epoch=${document.querySelector("canvas").dataset.epoch}&`;
bench.panel = () => document.querySelector("section[aria-label=Datapoint]");
bench.told = (dp) => bench.panel().dataset.header === dp && bench.panel().querySelector(".scores dd") !== null;
bench.pictures = (dp, selector) => {
  const all = bench.panel().dataset.dp === dp ? [...bench.panel().querySelectorAll(selector)] : [];
  return all.length > 0 && all.every((one) => one.complete && one.naturalWidth && one.src.includes(`dp=${dp}`));
};
bench.cell = (position) => {
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const n = Number(canvas.dataset.cells), width = parseInt(canvas.style.width), height = parseInt(canvas.style.height);
  for (let size = 2; size <= 26; size += 1) {
    const columns = width / size;
    if (!Number.isInteger(columns) || Math.ceil(n / columns) * size !== height) continue;
    const row = Math.floor(position / columns);
    return {x: box.left + (position % columns + 0.5) * size, y: box.top + (row + 0.5) * size};
  }
};
"""


@dataclass
class Figure:
    """One line of the table: times in milliseconds, and what they may be."""

    what: str
    limit: float
    values: list[float] = field(default_factory=list)
    note: str = ""
    load: float = 0.0
    """Of the machine in the minute before it was done; the browser and the server are 1 to 2 of it."""

    def at(self, share: float) -> float:
        """The nearest rank: at least so large a share is not longer."""
        ordered = sorted(self.values)
        return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]

    @property
    def verdict(self) -> str:
        return "pass" if self.at(0.95) <= self.limit else "FAIL"

    def __str__(self) -> str:
        told = f"p95 {self.at(0.95):.0f} ms, at most {self.limit:.0f} ms (load {self.load:.1f})"
        return f"- {self.verdict}: {self.what}: {told}"

    def row(self) -> list[str]:
        found = [f"{self.at(share):,.0f} ms" for share in (0.5, 0.95, 1.0)]
        rest = [str(len(self.values)), f"{self.load:.1f}", self.verdict, self.note]
        return [self.what, f"{self.limit:,.0f} ms", *found, *rest]


# ---------------------------------------------------------------- server and browser
class Server:
    """`endoscope view` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        code = "from endoscope.cli import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, "view", str(folder), "--no-browser", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"endoscope view printed {line!r} instead of an address")
        self.address = found[0]

    def resident(self) -> dict[str, int]:
        """Bytes of memory: all, and those that are no files."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        held = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "Rss"))}
        return {"all": held["VmRSS"], "anonymous": held["RssAnon"]}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()


class Window:
    """A browser window with an empty cache, on a server."""

    def __init__(self, browser: Any, server: Server) -> None:
        self._context = browser.new_context(viewport=WINDOW)
        self.page = self._context.new_page()
        self.page.add_init_script(PROBE)
        self._server = server

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def open(self) -> float:
        """The address that `endoscope view` prints; milliseconds until the map is painted."""
        self.page.goto(self._server.address, wait_until="commit")
        self.page.wait_for_function("() => window.bench")
        return float(self.page.evaluate("bench.painted(() => document.querySelector('canvas') && bench.drawn > 0)"))

    def arm(self, **wanted: str) -> None:
        """Begin to look for conditions, before the click or key, so that the way to the browser is not measured."""
        parts = ", ".join(f"bench.painted(() => bench.start < Infinity && {one})" for one in wanted.values())
        self.page.evaluate(f"() => {{ bench.arm(); bench.all = Promise.all([{parts}]); }}")
        self._wanted = [*wanted]

    def times(self) -> dict[str, float]:
        """Milliseconds from the click or key until each condition was painted."""
        found = self.page.evaluate("bench.all.then((all) => all.map((one) => one - bench.start))")
        return dict(zip(self._wanted, found, strict=True))

    def settle(self) -> None:
        """What a person needs at least to look at it; one action is not to wait for the one before."""
        self.page.wait_for_timeout(500)

    def click(self, dp: int, position: int, **wanted: str) -> dict[str, float]:
        place = self.page.evaluate("(position) => bench.cell(position)", position)
        self.arm(**{name: code.replace("DP", f"'{dp}'") for name, code in wanted.items()})
        self.page.mouse.click(place["x"], place["y"])
        return self.times()

    def positions(self) -> dict[int, int]:
        """Where each datapoint is in the map that is shown."""
        address = "bench_map = performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/map?'))"
        url = self.page.evaluate(f"{address}, bench_map.find((one) => one.name.includes(bench.shown())).name")
        indices = self.page.request.get(url.replace("form=arrays", "form=json")).json()["indices"]
        return {int(idx): at for at, idx in enumerate(indices)}


# ---------------------------------------------------------------- what is measured
def measure_first_paint(browser: Any, folder: Path, repetitions: int) -> list[Figure]:
    cold, warm = Figure("first useful paint, server just started", 1500), Figure("first useful paint", 1500)
    for _ in range(repetitions):
        with serving(folder) as server:
            for figure in (cold, warm):
                with Window(browser, server) as window:
                    figure.values.append(window.open())
                    window.settle()
    return [warm, cold]


def measure_map(browser: Any, folder: Path, size: Size, repetitions: int) -> list[Figure]:
    """Every epoch and every metric for the first time since the server was started."""
    epoch_change = Figure("epoch change on the score map", 100, note="the one before, with the keyboard")
    far_change = Figure("epoch change, far away", 100, note="with the slider, from 0.5 s after opening on")
    metric_change = Figure("metric change on the score map", 100)
    others = [name for name in viewer_run.DIRECTIONS if name != "loss"]
    while min(len(one.values) for one in (epoch_change, far_change, metric_change)) < repetitions:
        with serving(folder) as server, Window(browser, server) as window:
            window.open()
            metric = "loss"
            for epoch in reversed(range(size.epochs - 1)):
                window.settle()
                window.arm(map=f"bench.mapped({epoch}, '{metric}')")
                window.page.keyboard.press("ArrowLeft")
                epoch_change.values.append(window.times()["map"])
                if epoch % 2 == 0:
                    metric = others[(epoch // 2) % 2] if metric == "loss" else "loss"
                    window.settle()
                    window.arm(map=f"bench.mapped({epoch}, '{metric}')")
                    window.page.select_option("select[aria-label=metric]", metric)
                    metric_change.values.append(window.times()["map"])
                    window.page.evaluate("document.activeElement.blur()")
        with serving(folder) as server, Window(browser, server) as window:
            window.open()
            for epoch in [*range(2, size.epochs - 3, 6), *range(5, size.epochs - 3, 6)]:
                window.settle()
                window.arm(map=f"bench.mapped({epoch}, 'loss')")
                code = "([epoch]) => { const s = document.querySelector('input[aria-label=epoch]'); s.value = epoch;"
                window.page.evaluate(f"{code} s.dispatchEvent(new Event('input')); }}", [epoch])
                far_change.values.append(window.times()["map"])
    return [epoch_change, far_change, metric_change]


def measure_clicks(browser: Any, folder: Path, size: Size, repetitions: int) -> list[Figure]:
    """Datapoints with large maps, none of which was looked at before; their pages are read from the disk."""
    header = Figure("click to datapoint header", 100, note="label, prediction and scores")
    images = Figure("click to input image", 300)
    grid = Figure("click to 64-channel grid", 500, note="64 x 56 x 56")
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        at = window.positions()
        chosen = random.Random(0).sample(size.indices, min(repetitions, size.large))
        window.click(size.indices[0], at[size.indices[0]], told="bench.told(DP)")
        for dp in chosen:
            window.settle()
            found = window.click(
                dp,
                at[dp],
                header="bench.told(DP)",
                images="bench.pictures(DP, '[data-section=inputs] img')",
                grid="bench.pictures(DP, '[data-debugger=features] img')",
            )
            header.values.append(found["header"])
            images.values.append(found["images"])
            grid.values.append(found["grid"])
    return [header, images, grid]


def measure_memory(browser: Any, folder: Path, size: Size) -> list[tuple[int, dict[str, int]]]:
    """(datapoints looked at so far, bytes), all with large maps, over several epochs."""
    found = []
    looked_at = 0
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        found.append((0, server.resident()))
        while looked_at < MEMORY_FIRST + MEMORY_NEXT:
            at = window.positions()
            for dp in size.indices[:MEMORY_FIRST]:
                window.click(
                    dp,
                    at[dp],
                    all="bench.pictures(DP, '[data-section=inputs] img, [data-section=debugger] img')",
                )
                looked_at += 1
                if looked_at % 100 == 0:
                    found.append((looked_at, server.resident()))
                if looked_at == MEMORY_FIRST + MEMORY_NEXT:
                    break
            window.settle()
            window.arm(map="bench.drawn > bench.start")
            window.page.keyboard.press("ArrowLeft")
            window.times()
            window.settle()
    return found


def measure_live(browser: Any, folder: Path, size: Size, repetitions: int) -> Figure:
    """An epoch's scores are in place; the page, which nobody touches, shows them."""
    figure = Figure("new epoch of a live run visible", 2000)
    chance = random.Random(0)
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        for epoch in range(size.epochs, size.epochs + repetitions):
            window.page.wait_for_timeout(1200 + 1000 * chance.random())  # at any time between two questions
            window.page.evaluate("() => { bench.start = performance.now(); }")
            viewer_run.write_scored_epoch(folder, epoch, size.datapoints)
            written = time.time()
            code = f"bench.painted(() => bench.mapped({epoch}, 'loss')).then(() => Date.now())"
            figure.values.append(window.page.evaluate(code) - 1000 * written)
    return figure


# ---------------------------------------------------------------- printing
def print_memory(found: Sequence[tuple[int, Mapping[str, int]]]) -> list[str]:
    rows = [[f"{n:,}", f"{held['all'] / _MB:,.0f} MB", f"{held['anonymous'] / _MB:,.0f} MB"] for n, held in found]
    measure.table("Memory of the server", ["datapoints looked at", "resident", "of it no files"], rows)
    held = dict(found)
    first, last = held[MEMORY_FIRST]["all"], found[-1][1]["all"]
    most = max(one["all"] for _, one in found)
    grown = (last - first) / _MB
    return [
        f"- {'pass' if most <= 300 * _MB else 'FAIL'}: memory of the server: {most / _MB:.0f} MB, at most 300 MB",
        f"- {'pass' if grown <= 0.05 * first / _MB else 'FAIL'}: flat: {grown:+.1f} MB over the next {MEMORY_NEXT} "
        f"datapoints, at most 5 % of {first / _MB:.0f} MB",
    ]


def size_of(given: argparse.Namespace, parent: Path) -> Size:
    """As asked for, thinned to what the disk allows."""
    wanted = Size(given.datapoints, given.epochs, max(1, round(given.datapoints / 20 * given.scale)))
    free = shutil.disk_usage(parent).free
    if wanted.bytes <= free / 2:
        return wanted
    rest = Size(given.datapoints, given.epochs, 0).bytes
    large = max(1, int((free / 2 - rest) / (wanted.bytes - rest) * wanted.large))
    print(f"The disk has {free / 1e9:.1f} GB free: {large} instead of {wanted.large} datapoints have large maps.")
    return Size(given.datapoints, given.epochs, large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datapoints", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the one in 20 datapoints that have large maps")
    parser.add_argument(
        "--repetitions", type=int, default=40, help="of each measurement; half as many where it is slow"
    )
    parser.add_argument("--only", choices=["paint", "map", "clicks", "memory", "live"], action="append")
    parser.add_argument("--dir", help="where the run is written for the time being; a temporary folder otherwise")
    parser.add_argument("--run", type=Path, help="write the run there, or take the one that is there, and leave it")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sys.exit("bench/viewer.py drives a browser: pip install playwright")
    if CHROMIUM is None:
        sys.exit("bench/viewer.py needs chromium, chromium-browser or google-chrome on the path")
    parts = given.only or ["paint", "map", "clicks", "memory", "live"]
    with measure.scratch(given.dir) as scratch:
        folder = given.run or scratch / "run"
        size = size_of(given, folder.parent)
        describe_run(folder, size)
        figures: list[Figure] = []
        told: list[str] = []
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for part in parts:
                print(f"measuring: {part}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
                found: list[Figure] = []
                if part == "paint":
                    found = measure_first_paint(browser, folder, -(-given.repetitions // 2))
                elif part == "map":
                    found = measure_map(browser, folder, size, given.repetitions)
                elif part == "clicks":
                    found = measure_clicks(browser, folder, size, given.repetitions)
                elif part == "memory":
                    told = print_memory(measure_memory(browser, folder, size))
                else:
                    found = [measure_live(browser, folder, size, -(-given.repetitions // 2))]
                for figure in found:
                    figure.load = os.getloadavg()[0]
                    print(figure, flush=True)
                figures += found
            browser.close()
        if figures:
            heads = ["what", "p95 at most", "p50", "p95", "longest", "n", "load", "verdict", "note"]
            measure.table("The viewer in Chromium", heads, [figure.row() for figure in figures])
        print("", *told, *figures, sep="\n")
        for figure in figures:
            measure.append_json(given.json, {"what": figure.what, "ms": figure.values, "load": figure.load})


def describe_run(folder: Path, size: Size) -> None:
    """Write it, or make one that is there as it was at first; say what it holds."""
    began = time.perf_counter()
    if folder.exists():
        viewer_run.renew(folder, size)
    else:
        viewer_run.write_run(folder, size)
    measure.sync(folder, evict=True)
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"{measure.machine()}\n{size.datapoints:,} datapoints x {size.epochs} epochs, {written / 1e9:.2f} GB "
        f"({time.perf_counter() - began:.0f} s): all have inputs, scores, outputs and small debug outputs, "
        f"{size.large:,} have maps of 64 x 56 x 56; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
