"""Recently read values: pictures do not read them again, a changed file is noticed, and the memory is bounded."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.viewer import runs
from tests.viewer.api import Viewer

from endoscope.pages.reader import DebugOutputs
from endoscope.values import DataclassValue
from endoscope.viewer import datapoints
from endoscope.viewer.datapoints import size_of

Reads = list[tuple[str, int, str]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The folder, datapoint and name of every value that is read from a page."""
    found: Reads = []
    original = DebugOutputs.read

    def watched(self: DebugOutputs, idx: int, name: str) -> Any:
        found.append((self.folder.name, idx, name))
        return original(self, idx, name)

    monkeypatch.setattr(DebugOutputs, "read", watched)
    return found


def pictures(viewer: Viewer, **query: Any) -> list[str]:
    bodies = [item["body"] for item in viewer.items(**query).values()]
    return [body[key] for body in bodies for key in ("src", "overlay") if body.get(key)]


def feature_map(viewer: Viewer) -> str:
    return str(viewer.items(epoch=1, dp=4)["features", "feature_map"]["body"]["src"])


def rewrite(folder: Path, value: torch.Tensor) -> None:
    """The same page again, with another feature map for datapoints 4 and 5, and with the same times."""
    pages = folder / "epoch_1" / "debugger"
    times = {path.name: path.stat() for path in pages.iterdir()}
    for path in pages.iterdir():
        path.unlink()
    runs.write_pages(pages, {(4, 5): {"features": {"feature_map": value}}})
    for path in pages.iterdir():
        if path.name in times:
            os.utime(path, ns=(times[path.name].st_atime_ns, times[path.name].st_mtime_ns))


def test_the_pictures_of_a_datapoint_read_nothing_again(root: Path, reads: Reads) -> None:
    viewer = Viewer(root)
    srcs = pictures(viewer, epoch=1, dp=4)
    assert len(srcs) > 6 and {name for _, _, name in reads} >= {"inputs", "outputs", "features", "video", "gradcam"}
    reads.clear()
    for src in srcs:
        viewer.pixels(src)
    assert reads == []
    assert len(pictures(viewer, epoch=1, dp=5)) > 6
    assert {idx for _, idx, _ in reads} == {5}  # twin: another datapoint is read


def test_a_picture_by_itself_reads_its_own_debugger_only(root: Path, reads: Reads) -> None:
    src = Viewer(root).items(epoch=1, dp=4)["video", "feature_map"]["body"]["src"]
    assert ("debugger", 4, "features") in reads
    reads.clear()
    Viewer(root).pixels(src)
    assert {name for _, _, name in reads} - {"meta_info", "inputs", "labels", "outputs"} == {"video"}


def test_a_page_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    viewer = Viewer(tmp_path)
    src = feature_map(viewer)
    before = viewer.pixels(src)
    value = torch.linspace(-3, 5, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
    rewrite(folder, value)
    assert feature_map(viewer) != src
    after = viewer.pixels(src)  # the old address shows the new value
    assert after.shape != before.shape or (after != before).any()
    (stats,) = {item["stats"]["count"] for key, item in viewer.items(epoch=1, dp=4).items() if key[0] == "features"}
    assert stats == value[0].numel()


def test_a_damaged_page_is_noticed_after_its_values_were_read(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    viewer = Viewer(tmp_path)
    src = feature_map(viewer)
    viewer.pixels(src)
    (page,) = (folder / "epoch_1" / "debugger").glob("*.safetensors")
    page.write_bytes(page.read_bytes()[:100])
    assert viewer.client.get(src).status == 422


def test_looking_through_other_datapoints_keeps_the_shown_one(root: Path, reads: Reads) -> None:
    viewer = Viewer(root)
    srcs = pictures(viewer, epoch=1, dp=4)
    viewer.get("compare", epoch=1, dp=5)  # reads labels and outputs of all successes
    viewer.get("worst", epoch=1)
    reads.clear()
    for src in srcs:
        viewer.pixels(src)
    assert reads == []


@pytest.mark.parametrize(("limit", "most"), [("MAX_BYTES", 10_000), ("MAX_COUNT", 3)])
def test_the_memory_is_bounded(root: Path, limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datapoints, limit, most)
    viewer = Viewer(root)
    values = viewer.library.datapoints.values
    shown = [viewer.pixels(src) for dp in (4, 5) for src in pictures(viewer, epoch=1, dp=dp)]
    assert shown and len(values) > 0
    assert (values.nbytes if limit == "MAX_BYTES" else len(values)) <= most


def test_the_cache_keeps_no_folder_open(root: Path) -> None:
    viewer = Viewer(root)
    viewer.items(epoch=1, dp=4)
    run = viewer.library.run(viewer.ids[0])
    epoch = run.epoch(1)
    assert epoch is not None
    pages = epoch.debugger
    assert pages is not None
    alive = weakref.ref(pages)
    del run, epoch, pages, viewer.library._open[viewer.ids[0]]
    gc.collect()
    assert alive() is None
    assert viewer.items(epoch=1, dp=4)  # the run is opened again, and its values are read again


def test_several_threads_get_the_right_values(root: Path) -> None:
    viewer = Viewer(root)
    run = viewer.library.run(viewer.ids[0])
    epoch = run.epoch(1)
    assert epoch is not None and epoch.debugger is not None
    expected = {dp: epoch.debugger.read(dp, "features")["feature_map"] for dp in (4, 5)}

    def read(dp: int) -> bool:
        value = viewer.library.datapoints.of(epoch, dp).read("debugger", "features")["feature_map"]
        return bool(torch.equal(value.nan_to_num(), expected[dp].nan_to_num()))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, [4, 5] * 50))


@pytest.mark.parametrize(
    ("make", "at_least"),
    [
        (lambda: torch.zeros(1000), 4000),
        (lambda: {"a": np.zeros(1000), "b": [torch.zeros(1000)]}, 12_000),
        (lambda: DataclassValue("m.C", {"t": torch.zeros(1000), "s": "x" * 5000}), 9000),
        (lambda: ["text"] * 1000, 4000),
        (lambda: 5, 1),
    ],
)
def test_the_size_counts_tensors_texts_and_containers(make: Callable[[], Any], at_least: int) -> None:
    assert at_least <= size_of(make()) < 200_000
