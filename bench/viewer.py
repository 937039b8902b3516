"""Measures the viewer in a real browser: waiting times, and the memory of the server."""

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
"""Datapoints shown before the first measurement of memory, and after it."""
_MB = 1_000_000

# Runs in every page before its own scripts. A time begins with the browser's own time stamp of the click or key, and
# ends after the frame that paints the expected change.
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
bench.header = (dp) => bench.panel().dataset.header === dp && bench.panel().querySelector(".scores dd") !== null;
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
    """One line of the table: times in milliseconds, and their limit."""

    what: str
    limit: float
    values: list[float] = field(default_factory=list)
    note: str = ""
    load: float = 0.0
    """Load of the machine in the minute before the end; the browser and the server account for 1 to 2 of it."""

    def at(self, share: float) -> float:
        """Percentile by nearest rank."""
        ordered = sorted(self.values)
        return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]

    @property
    def verdict(self) -> str:
        return "pass" if self.at(0.95) <= self.limit else "FAIL"

    def __str__(self) -> str:
        times = f"p95 {self.at(0.95):.0f} ms, at most {self.limit:.0f} ms (load {self.load:.1f})"
        return f"- {self.verdict}: {self.what}: {times}"

    def row(self) -> list[str]:
        times = [f"{self.at(share):,.0f} ms" for share in (0.5, 0.95, 1.0)]
        rest = [str(len(self.values)), f"{self.load:.1f}", self.verdict, self.note]
        return [self.what, f"{self.limit:,.0f} ms", *times, *rest]


# ---------------------------------------------------------------- server and browser
class Server:
    """`endoscope view` as a separate process."""

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
        """Bytes of memory: all of it, and the part that does not map files."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "Rss"))}
        return {"all": 1024 * kb["VmRSS"], "anonymous": 1024 * kb["RssAnon"]}

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
    """A browser window with an empty cache."""

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
        """Open the address that `endoscope view` prints; returns milliseconds until the map is painted."""
        self.page.goto(self._server.address, wait_until="commit")
        self.page.wait_for_function("() => window.bench")
        return float(self.page.evaluate("bench.painted(() => document.querySelector('canvas') && bench.drawn > 0)"))

    def arm(self, **conditions: str) -> None:
        """Start to watch for conditions before the click or key, so that the way to the browser is not measured."""
        parts = ", ".join(f"bench.painted(() => bench.start < Infinity && {one})" for one in conditions.values())
        self.page.evaluate(f"() => {{ bench.arm(); bench.all = Promise.all([{parts}]); }}")
        self._conditions = [*conditions]

    def times(self) -> dict[str, float]:
        """Milliseconds from the click or key until each condition is painted."""
        found = self.page.evaluate("bench.all.then((all) => all.map((one) => one - bench.start))")
        return dict(zip(self._conditions, found, strict=True))

    def settle(self) -> None:
        """Pause, as a person would, so that no action waits for the previous one."""
        self.page.wait_for_timeout(500)

    def click(self, dp: int, position: int, **conditions: str) -> dict[str, float]:
        place = self.page.evaluate("(position) => bench.cell(position)", position)
        self.arm(**{name: code.replace("DP", f"'{dp}'") for name, code in conditions.items()})
        self.page.mouse.click(place["x"], place["y"])
        return self.times()

    def positions(self) -> dict[int, int]:
        """The position of each datapoint in the map that is shown."""
        address = "bench_map = performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/map?'))"
        url = self.page.evaluate(f"{address}, bench_map.find((one) => one.name.includes(bench.shown())).name")
        indices = self.page.request.get(url.replace("form=arrays", "form=json")).json()["indices"]
        return {int(idx): at for at, idx in enumerate(indices)}


# ---------------------------------------------------------------- measurements
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
    """Every epoch and metric for the first time since the server started."""
    epoch_change = Figure("epoch change on the score map", 100, note="the previous one, with the keyboard")
    far_change = Figure("epoch change, far away", 100, note="with the slider, 0.5 s after opening or later")
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
    """Datapoints with large maps, each shown for the first time; their pages are read from disk."""
    header = Figure("click to datapoint header", 100, note="label, prediction and scores")
    images = Figure("click to input image", 300)
    grid = Figure("click to 64-channel grid", 500, note="64 x 56 x 56")
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        at = window.positions()
        chosen = random.Random(0).sample(size.indices, min(repetitions, size.large))
        window.click(size.indices[0], at[size.indices[0]], header="bench.header(DP)")
        for dp in chosen:
            window.settle()
            found = window.click(
                dp,
                at[dp],
                header="bench.header(DP)",
                images="bench.pictures(DP, '[data-section=inputs] img')",
                grid="bench.pictures(DP, '[data-debugger=features] img')",
            )
            header.values.append(found["header"])
            images.values.append(found["images"])
            grid.values.append(found["grid"])
    return [header, images, grid]


def measure_memory(browser: Any, folder: Path, size: Size) -> list[tuple[int, dict[str, int]]]:
    """(datapoints shown so far, bytes); all have large maps, over several epochs."""
    found = []
    shown = 0
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        found.append((0, server.resident()))
        while shown < MEMORY_FIRST + MEMORY_NEXT:
            at = window.positions()
            for dp in size.indices[:MEMORY_FIRST]:
                window.click(
                    dp,
                    at[dp],
                    all="bench.pictures(DP, '[data-section=inputs] img, [data-section=debugger] img')",
                )
                shown += 1
                if shown % 100 == 0:
                    found.append((shown, server.resident()))
                if shown == MEMORY_FIRST + MEMORY_NEXT:
                    break
            window.settle()
            window.arm(map="bench.drawn > bench.start")
            window.page.keyboard.press("ArrowLeft")
            window.times()
            window.settle()
    return found


def measure_live(browser: Any, folder: Path, size: Size, repetitions: int) -> Figure:
    """Time from writing an epoch's scores until the page shows them by itself."""
    figure = Figure("new epoch of a live run visible", 2000)
    chance = random.Random(0)
    with serving(folder) as server, Window(browser, server) as window:
        window.open()
        for epoch in range(size.epochs, size.epochs + repetitions):
            window.page.wait_for_timeout(1200 + 1000 * chance.random())  # at any time between two requests
            window.page.evaluate("() => { bench.start = performance.now(); }")
            viewer_run.write_scored_epoch(folder, epoch, size.datapoints)
            written = time.time()
            code = f"bench.painted(() => bench.mapped({epoch}, 'loss')).then(() => Date.now())"
            figure.values.append(window.page.evaluate(code) - 1000 * written)
    return figure


# ---------------------------------------------------------------- printing
def print_memory(found: Sequence[tuple[int, Mapping[str, int]]]) -> list[str]:
    rows = [[f"{n:,}", f"{one['all'] / _MB:,.0f} MB", f"{one['anonymous'] / _MB:,.0f} MB"] for n, one in found]
    measure.table("Memory of the server", ["datapoints shown", "resident", "of it anonymous"], rows)
    by_count = dict(found)
    first, last = by_count[MEMORY_FIRST]["all"], found[-1][1]["all"]
    most = max(one["all"] for _, one in found)
    grown = (last - first) / _MB
    return [
        f"- {'pass' if most <= 300 * _MB else 'FAIL'}: memory of the server: {most / _MB:.0f} MB, at most 300 MB",
        f"- {'pass' if grown <= 0.05 * first / _MB else 'FAIL'}: flat: {grown:+.1f} MB over the next {MEMORY_NEXT} "
        f"datapoints, at most 5 % of {first / _MB:.0f} MB",
    ]


def size_of(options: argparse.Namespace, parent: Path) -> Size:
    """The requested size, reduced to what the disk allows."""
    requested = Size(options.datapoints, options.epochs, max(1, round(options.datapoints / 20 * options.scale)))
    free = shutil.disk_usage(parent).free
    if requested.bytes <= free / 2:
        return requested
    rest = Size(options.datapoints, options.epochs, 0).bytes
    large = max(1, int((free / 2 - rest) / (requested.bytes - rest) * requested.large))
    print(f"The disk has {free / 1e9:.1f} GB free: {large} instead of {requested.large} datapoints have large maps.")
    return Size(options.datapoints, options.epochs, large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datapoints", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the 1 in 20 datapoints with large maps")
    parser.add_argument("--repetitions", type=int, default=40, help="of each measurement; half as many for slow ones")
    parser.add_argument("--only", choices=["paint", "map", "clicks", "memory", "live"], action="append")
    parser.add_argument("--dir", help="where to write the run; a temporary folder by default")
    parser.add_argument("--run", type=Path, help="write the run here and keep it, or use the one that exists")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sys.exit("bench/viewer.py drives a browser: pip install playwright")
    if CHROMIUM is None:
        sys.exit("bench/viewer.py needs chromium, chromium-browser or google-chrome on the path")
    parts = options.only or ["paint", "map", "clicks", "memory", "live"]
    with measure.scratch(options.dir) as scratch:
        folder = options.run or scratch / "run"
        size = size_of(options, folder.parent)
        describe_run(folder, size)
        figures: list[Figure] = []
        memory: list[str] = []
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for part in parts:
                print(f"measuring: {part}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
                found: list[Figure] = []
                if part == "paint":
                    found = measure_first_paint(browser, folder, -(-options.repetitions // 2))
                elif part == "map":
                    found = measure_map(browser, folder, size, options.repetitions)
                elif part == "clicks":
                    found = measure_clicks(browser, folder, size, options.repetitions)
                elif part == "memory":
                    memory = print_memory(measure_memory(browser, folder, size))
                else:
                    found = [measure_live(browser, folder, size, -(-options.repetitions // 2))]
                for figure in found:
                    figure.load = os.getloadavg()[0]
                    print(figure, flush=True)
                figures += found
            browser.close()
        if figures:
            heads = ["what", "p95 at most", "p50", "p95", "longest", "n", "load", "verdict", "note"]
            measure.table("The viewer in Chromium", heads, [figure.row() for figure in figures])
        print("", *memory, *figures, sep="\n")
        for figure in figures:
            measure.append_json(options.json, {"what": figure.what, "ms": figure.values, "load": figure.load})


def describe_run(folder: Path, size: Size) -> None:
    """Write the run, or reset an existing one; print what it holds."""
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
