"""Pictures that are compared have one colour range; a difference has a scale with zero in its middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.viewer import runs
from tests.viewer.api import Viewer

from endoscope.render import colours
from endoscope.runs import Run


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Viewer:
    folder: Path = tmp_path_factory.mktemp("scales")
    runs.training(folder / "run")
    return Viewer(folder)


def values(viewer: Viewer, epoch: int, dp: int = 4) -> np.ndarray:
    kept = Run(viewer.library.entry(viewer.ids[0]).path).epoch(epoch).debugger
    assert kept is not None
    found: np.ndarray = kept.read(dp, "features")["feature_map"].double().numpy()
    return found


def test_both_sides_have_the_range_of_both(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="epochs", epoch=2, other=1, dp=4)
    layer = next(one for one in reply["layers"] if one["debugger"] == "features")
    both = np.concatenate([values(viewer, 1).ravel(), values(viewer, 2).ravel()])
    expected = [np.nanmin(both), np.nanmax(both)]
    alone = [viewer.items(epoch=epoch, dp=4)["features", "feature_map"]["body"] for epoch in (2, 1)]
    assert alone[0]["range"] != alone[1]["range"]
    for side, own in zip(("left", "right"), alone, strict=True):
        body = layer[side]["body"]
        assert body["shared"] is True
        assert body["range"] == pytest.approx(expected)
        if own["range"] != body["range"]:
            assert (viewer.pixels(body["src"]) != viewer.pixels(own["src"])).any()
        assert "shared" not in own


def test_a_difference_says_what_its_colours_mean(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="epochs", epoch=2, other=1, dp=4)
    layer = next(one for one in reply["layers"] if one["debugger"] == "features")
    largest = np.nanmax(np.abs(values(viewer, 2) - values(viewer, 1)))
    assert layer["scale"]["range"] == pytest.approx([-largest, largest])
    assert layer["scale"]["legend"] == colours.legend(colours.DIVERGING)
    assert all(one["scale"] is None for one in reply["layers"] if one["src"] is None)


def test_all_epochs_of_a_strip_have_one_range(viewer: Viewer) -> None:
    item = viewer.items(epoch=1, dp=4)["features", "feature_map"]["id"]
    reply = viewer.get("time", dp=4, item=item)
    assert len({tuple(one["item"]["body"]["range"]) for one in reply["epochs"]}) == 1
    assert reply["epochs"][1]["difference"]["scale"]["range"][0] < 0


def test_values_that_are_no_coloured_maps_have_no_common_range(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="epochs", epoch=2, other=1, dp=4)
    others = [one for one in reply["layers"] if one["left"]["renderer"] not in ("channels", "heatmap", "attention")]
    assert others
    assert not any("shared" in one[side]["body"] for one in others for side in ("left", "right"))


@pytest.mark.parametrize("more", ["&low=1", "&low=x&high=2", "&low=2&high=1", "&low=nan&high=1", "&low=0&high=1e999"])
def test_invalid_ranges(viewer: Viewer, more: str) -> None:
    src = viewer.items(epoch=1, dp=4)["features", "feature_map"]["body"]["src"]
    assert viewer.client.get(src + more).status == 400


def test_another_range_is_another_picture_with_another_tag(viewer: Viewer) -> None:
    src = viewer.items(epoch=1, dp=4)["features", "feature_map"]["body"]["src"]
    one, other = (viewer.client.get(f"{src}&low=-{k}.5&high=1e%2B1") for k in (1, 2))
    assert one.status == other.status == 200
    assert one.header("etag") != other.header("etag")
    tag = one.header("etag")
    assert tag is not None
    assert viewer.client.get(f"{src}&low=-1.5&high=1e%2B1", headers=[("if-none-match", tag)]).status == 304
