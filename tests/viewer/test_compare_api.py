"""The addresses about one value beside another, asked as the page asks them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.viewer import runs
from tests.viewer.api import Viewer, labelled, run_of

from endoscope.values import per_datapoint
from endoscope.viewer import compare_api, neighbours


# ---------------------------------------------------------------- /api/time
def test_one_value_through_time(viewer: Viewer) -> None:
    item = viewer.items(epoch=1, dp=4)["features", "feature_map"]["id"]
    reply = viewer.get("time", dp=4, item=item)
    assert (reply["item"], reply["name"], reply["note"]) == (item, "feature_map", None)
    assert [one["epoch"] for one in reply["epochs"]] == [1, 2]
    assert reply["epochs"][0]["difference"] is None
    run = run_of(viewer)
    a, b = (run.epoch(k).debugger[4]["features"]["feature_map"].double() for k in (2, 1))  # type: ignore[union-attr,index]
    d = (a - b).abs()
    d = d[torch.isfinite(d)]
    step = reply["epochs"][1]["difference"]
    assert step["mean_abs"] == pytest.approx(d.mean().item())
    assert step["max_abs"] == pytest.approx(d.max().item())
    assert step["over"] == "159 of 160 values, where both are finite"
    assert viewer.pixels(step["src"]).shape[1] > 100


def test_inputs_and_texts_through_time(viewer: Viewer) -> None:
    found = viewer.items(epoch=1, dp=4)
    text = viewer.get("time", dp=4, item=found["text", "caption"]["id"])
    assert [one["difference"] for one in text["epochs"]] == [None, None]
    same = viewer.get("time", dp=4, item=found[None, "inputs"]["id"])
    assert same["epochs"][1]["difference"]["max_abs"] == 0.0


def test_only_the_last_epochs_are_shown_with_a_note(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_api, "MAX_EPOCHS", 1)
    reply = viewer.get("time", dp=4, item=viewer.items(epoch=1, dp=4)["head", "output"]["id"])
    assert [one["epoch"] for one in reply["epochs"]] == [2]
    assert reply["note"] == "The last 1 of 2 captured epochs."


# ---------------------------------------------------------------- /api/compare
def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.dist(a, b) / ((a.norm() + b.norm()) / 2))


def test_two_epochs_of_one_datapoint_by_their_distance(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="epochs", epoch=2, dp=4)
    assert (reply["left"]["epoch"], reply["right"]["epoch"], reply["problem"]) == (2, 1, None)
    distances = [layer["distance"]["relative_l2"] for layer in reply["layers"] if layer["distance"]]
    assert distances == sorted(distances, reverse=True)
    assert [layer["distance"] is None for layer in reply["layers"]] == sorted(
        layer["distance"] is None for layer in reply["layers"]
    )
    run = run_of(viewer)
    sides = [run.epoch(k).debugger[4] for k in (2, 1)]  # type: ignore[union-attr,index]
    checked = 0
    for layer in reply["layers"]:
        if layer["debugger"] in ("head", "encoder", "video", "attention", "gradcam") and layer["distance"]:
            a, b = (side[layer["debugger"]][layer["name"]] for side in sides)
            a, b = (torch.as_tensor(x).double().flatten() for x in (a, b))
            assert layer["distance"]["relative_l2"] == pytest.approx(relative(a, b), rel=1e-6)
            cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
            assert layer["distance"]["cosine"] == (pytest.approx(cosine, rel=1e-6) if len(a) > 1 else None)
            checked += 1
            if layer["src"]:
                viewer.pixels(layer["src"])
    assert checked == 6
    chosen = viewer.get("compare", mode="epochs", epoch=1, dp=4, other=2)
    assert chosen["right"]["epoch"] == 2


def test_there_may_be_no_epoch_before(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="epochs", epoch=1, dp=4)
    assert (reply["right"], reply["layers"]) == (None, [])
    assert reply["problem"].startswith("No earlier epoch has stored outputs")


def test_a_datapoint_in_two_runs(two: Viewer) -> None:
    reply = two.get("compare", mode="runs", run=two.ids, epoch=1, dp=4)
    assert [reply[side]["run"] for side in ("left", "right")] == two.ids
    assert (reply["left"]["epoch"], reply["right"]["epoch"]) == (1, "eval")
    assert len(reply["layers"]) > 5
    alone = two.get("compare", mode="runs", epoch=1, dp=4)
    assert alone["problem"] == "Choose two runs to see this datapoint in both."


def test_the_nearest_success_is_the_one_with_the_nearest_outputs(viewer: Viewer) -> None:
    epoch = run_of(viewer).epoch(2)
    assert epoch is not None and epoch.outputs is not None
    rows = runs.usual_rows(2)
    worst = min(rows, key=lambda k: (-rows[k]["loss"], k))
    mine = epoch.outputs[worst]["outputs"].double()
    alike = [k for k in rows if k % 3 == worst % 3 and k != worst and epoch.outputs[k]["outputs"].argmax() == k % 3]
    assert alike
    nearest = min(alike, key=lambda k: (torch.dist(mine, epoch.outputs[k]["outputs"].double()).item(), k))  # type: ignore[index]
    reply = viewer.get("compare", mode="success", epoch=2, dp=worst, metric="loss")
    assert reply["right"]["dp"] == nearest
    assert reply["left"]["label"] == reply["right"]["label"]
    assert reply["right"]["prediction"]["name"] == reply["right"]["label"]
    name = reply["left"]["label"]
    told_of = f"of {len(alike)} correctly predicted as “{name}”"
    assert reply["note"] == f"The nearest outputs, {told_of}."
    chosen = viewer.get("compare", mode="success", epoch=2, dp=worst, metric="loss", other=1)
    assert chosen["right"]["dp"] == 1


def test_a_bounded_number_of_successes_is_examined(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_READ", 6)
    reply = viewer.get("compare", mode="success", epoch=2, dp=0, metric="loss")
    assert "successes" in (reply["note"] or reply["problem"])
    monkeypatch.setattr(neighbours, "MAX_READ", 1000)
    monkeypatch.setattr(neighbours, "MAX_COMPARED", 1)
    note = viewer.get("compare", mode="success", epoch=2, dp=0, metric="loss")["note"]
    assert re.search(r"of 1 correctly predicted as “cat”, from \d of 10 successes\.$", note)


def test_the_nearest_success_of_a_regression_has_the_nearest_label(tmp_path: Path) -> None:
    targets = torch.tensor([[2.0], [9.0], [2.5], [-7.0], [3.0]])
    viewer = labelled(tmp_path, targets, torch.rand(5, 1), class_names=None)
    reply = viewer.get("compare", mode="success", dp=0)
    assert reply["right"]["dp"] == 2
    assert reply["note"] == "The nearest label, of 4 successes."
    assert viewer.get("datapoint", dp=0)["prediction"] is None


def test_the_nearest_success_of_a_segmentation_has_the_mask_most_alike(tmp_path: Path) -> None:
    masks = torch.zeros(4, 8, 8, dtype=torch.int64)
    masks[1:, :4] = 2
    masks[3, :] = 0
    masks[3, 0, 0] = 1
    viewer = labelled(tmp_path, masks, torch.rand(4, 3, 8, 8))
    assert viewer.get("compare", mode="success", dp=0)["right"]["dp"] == 3


def test_labels_without_numbers_have_no_nearest(tmp_path: Path) -> None:
    viewer = labelled(
        tmp_path, per_datapoint(["a story", "another one", "a third"]), torch.rand(3, 1), class_names=None
    )
    reply = viewer.get("compare", mode="success", dp=0)
    assert reply["right"] is None
    assert "no numeric label" in reply["problem"]


def test_both_sides_have_their_inputs(viewer: Viewer) -> None:
    reply = viewer.get("compare", mode="success", epoch=2, dp=4, other=7)
    for side, dp in (("left", 4), ("right", 7)):
        (shown,) = reply[side]["inputs"]
        assert shown == viewer.items(epoch=2, dp=dp)[None, "inputs"]
        assert reply[side]["inputs_problem"] is None
        viewer.pixels(shown["body"]["src"])


def test_a_side_without_inputs_says_why(tmp_path: Path) -> None:
    runs.training(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "datapoints")
    reply = Viewer(tmp_path).get("compare", mode="epochs", epoch=2, dp=4)
    assert reply["left"]["inputs"] == []
    assert reply["left"]["inputs_problem"] == "This run has no stored inputs."


def two_captures(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> Viewer:
    """A run of which one datapoint was captured in two epochs."""
    runs.training(folder / "run", epochs=2, indices=[0, 1])
    for epoch, seen in enumerate((first, second)):
        shutil.rmtree(folder / "run" / f"epoch_{epoch}" / "debugger", ignore_errors=True)
        runs.write_pages(folder / "run" / f"epoch_{epoch}" / "debugger", {(0,): seen})
    return Viewer(folder)


def test_values_of_one_side_are_shown_alone(tmp_path: Path) -> None:
    ones = torch.ones(1, 3)
    viewer = two_captures(
        tmp_path, {"both": {"x": ones, "left": ones}, "first": {"x": ones}}, {"both": {"x": ones, "right": ones}}
    )
    layers = viewer.get("compare", mode="epochs", epoch=0, dp=0, other=1)["layers"]
    held = {(one["debugger"], one["name"]): (one["left"] is not None, one["right"] is not None) for one in layers}
    mine = {key: sides for key, sides in held.items() if key[0] is not None}
    assert mine == {
        ("both", "x"): (True, True),
        ("both", "left"): (True, False),
        ("both", "right"): (False, True),
        ("first", "x"): (True, False),
    }
    assert all(one["distance"] is None for one in layers if None in (one["left"], one["right"]))
    assert [None in (one["left"], one["right"]) for one in layers] == sorted(
        None in (one["left"], one["right"]) for one in layers
    )


@pytest.mark.parametrize(("mode", "side"), [("epochs", "Epoch 0: "), ("runs", "b: ")])
def test_a_problem_names_its_side(tmp_path: Path, mode: str, side: str) -> None:
    for name in ("a", "b"):
        runs.training(tmp_path / name)
    viewer = Viewer(tmp_path)
    shutil.rmtree(
        tmp_path / ("a" if mode == "epochs" else "b") / ("epoch_0" if mode == "epochs" else "epoch_2") / "debugger",
        ignore_errors=True,
    )
    more = {"other": 0} if mode == "epochs" else {"run": viewer.ids}
    reply = viewer.get("compare", mode=mode, epoch=2, dp=4, **more)
    assert any(text.startswith(f"{side}This epoch has no stored debug outputs.") for text in reply["problems"])
    seen = [layer for layer in reply["layers"] if layer["debugger"]]
    assert seen and all(layer["left"] and layer["right"] is None for layer in seen)


def test_a_damaged_side_leaves_the_other(tmp_path: Path) -> None:
    seen = {"a": {"map": torch.rand(1, 4, 6, 6)}, "b": {"map": torch.rand(1, 4, 6, 6)}}
    viewer = two_captures(tmp_path, seen, seen)
    page = tmp_path / "run" / "epoch_1" / "debugger" / "page_0.safetensors"
    data = bytearray(page.read_bytes())
    data[-5] ^= 1  # in what b gave
    page.write_bytes(data)
    reply = viewer.get("compare", mode="epochs", epoch=0, dp=0, other=1)
    layers = {one["debugger"]: one for one in reply["layers"] if one["debugger"]}
    assert layers["a"]["distance"]["relative_l2"] == 0.0 and layers["a"]["unread"] == []
    assert layers["b"]["left"] is not None and layers["b"]["right"] is None and layers["b"]["unread"] == ["right"]
    (problem,) = [text for text in reply["problems"] if "checksum" in text]
    assert problem.startswith("Epoch 1: ")


def test_the_head_of_a_side_says_how_many_inputs_there_are(tmp_path: Path) -> None:
    runs.write_about(tmp_path)
    mask = torch.zeros(1, 8, 8, dtype=torch.int64)
    inputs = {"inputs": {name: torch.rand(1, 3, 8, 8) for name in "abc"}, "labels": {"mask": mask, "n": torch.ones(1)}}
    runs.write_pages(tmp_path / "datapoints", {(0,): inputs})
    for epoch in (0, 1):
        runs.write_pages(tmp_path / f"epoch_{epoch}" / "outputs", {(0,): {"outputs": torch.rand(1, 2)}})
    reply = Viewer(tmp_path).get("compare", mode="epochs", epoch=1, dp=0)["left"]
    assert ([one["name"] for one in reply["inputs"]], reply["inputs_of"]) == (["a", "b"], 3)
    assert [(one["name"], one["renderer"]) for one in reply["labels"]] == [("mask", "mask")]


def test_unreadable_labels_are_reported(tmp_path: Path) -> None:
    runs.write_about(tmp_path)
    pages = tmp_path / "datapoints"
    runs.write_pages(pages, {(0,): {"inputs": torch.rand(1, 3, 8, 8), "labels": torch.zeros(1, 8, 8).long()}})
    for epoch in (0, 1):
        runs.write_pages(tmp_path / f"epoch_{epoch}" / "outputs", {(0,): {"outputs": torch.rand(1, 2)}})
    data = bytearray((pages / "page_0.safetensors").read_bytes())
    data[-5] ^= 1
    (pages / "page_0.safetensors").write_bytes(data)
    reply = Viewer(tmp_path).get("compare", mode="epochs", epoch=1, dp=0)["left"]
    assert (len(reply["inputs"]), reply["labels"], reply["inputs_problem"]) == (1, [], None)
    assert "checksum" in reply["labels_problem"]


@pytest.mark.parametrize("form", ["attention", "channels", "image"])
def test_a_difference_is_laid_out_as_its_sides_are(form: str, tmp_path: Path) -> None:
    value = {
        "attention": torch.rand(1, 8, 16, 16).softmax(-1),
        "channels": torch.rand(1, 20, 16, 16),
        "image": torch.randint(0, 255, (1, 3, 20, 30), dtype=torch.uint8),
    }[form]
    viewer = two_captures(tmp_path, {"seen": {form: value}}, {"seen": {form: value.flip(1)}})
    reply = viewer.get("compare", mode="epochs", epoch=0, dp=0, other=1)
    (layer,) = [one for one in reply["layers"] if one["debugger"] == "seen"]
    assert layer["left"]["renderer"] == form
    difference, side = viewer.pixels(layer["src"]), viewer.pixels(layer["left"]["body"]["src"])
    assert difference.shape[:2] == side.shape[:2]
    assert layer["scale"]["note"] == ("mean over the channels" if form == "image" else None)
    strip = viewer.get("time", dp=0, item=layer["id"])["epochs"]
    assert viewer.pixels(strip[1]["difference"]["src"]).shape[:2] == side.shape[:2]


def test_classes_differ_by_the_share_of_places(tmp_path: Path) -> None:
    masks = torch.zeros(2, 8, 8, dtype=torch.int64)
    masks[0, :2], masks[1, 1:3] = 2, 1
    viewer = two_captures(tmp_path, {"seg": {"mask": masks[:1]}}, {"seg": {"mask": masks[1:]}})
    reply = viewer.get("compare", mode="epochs", epoch=0, dp=0, other=1)
    (layer,) = [one for one in reply["layers"] if one["debugger"] == "seg"]
    assert layer["left"]["renderer"] == "mask"
    share = (masks[0] != masks[1]).double().mean().item()
    assert layer["distance"] == {"differing": share}
    pixels = viewer.pixels(layer["src"])
    size = pixels.shape[0] // 8
    colours: dict[bool, set[Any]] = {True: set(), False: set()}
    for y in range(8):
        for x in range(8):
            colours[bool(masks[0, y, x] == masks[1, y, x])].add(tuple(pixels[y * size, x * size]))
    assert len(colours[True]) == len(colours[False]) == 1 and colours[True] != colours[False]
    strip = viewer.get("time", dp=0, item=layer["id"])["epochs"]
    assert strip[1]["difference"]["differing"] == share


def test_numbers_are_compared_as_one_value(tmp_path: Path) -> None:
    def seen(**numbers: Any) -> dict[str, Any]:
        return {name: {"map": torch.ones(1, 2), name: number} for name, number in numbers.items()}

    viewer = two_captures(tmp_path, seen(x=3.0, k=2, same=1.5, yes=True), seen(x=1.0, k=2, same=1.5, yes=False))
    reply = viewer.get("compare", mode="epochs", epoch=0, dp=0, other=1)
    found = {one["name"]: one["distance"] for one in reply["layers"] if one["debugger"] == one["name"]}
    assert found["x"] == {"relative_l2": 1.0, "cosine": None, "over": "all 1 values"}
    assert found["k"]["relative_l2"] == found["same"]["relative_l2"] == 0.0
    assert found["yes"] is None


def test_a_datapoint_that_only_one_run_has(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    runs.training(tmp_path / "b", indices=[0, 1])
    viewer = Viewer(tmp_path)
    for ids, side in ((viewer.ids, "left"), (viewer.ids[::-1], "right")):
        reply = viewer.get("compare", mode="runs", run=ids, epoch=2, dp=4)
        assert reply["layers"] and all(layer[side] is not None for layer in reply["layers"])
        assert any("Datapoint 4 has no stored debug outputs" in text for text in reply["problems"])
    assert viewer.ask("compare", mode="runs", run=viewer.ids, epoch=2, dp=99).status == 404


def test_a_success_is_correctly_predicted(tmp_path: Path) -> None:
    """Datapoint 1 has the nearest outputs and the same label, and is taken for another class."""
    outputs = torch.tensor([[0.0, 3.0, 0.0], [0.1, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    viewer = labelled(tmp_path, torch.tensor([0, 0, 0, 2]), outputs)
    reply = viewer.get("compare", mode="success", dp=0)
    assert reply["right"]["dp"] == 2
    assert reply["note"] == "The nearest outputs, of 1 correctly predicted as “cat”."
    none = labelled(tmp_path / "none", torch.tensor([0, 0]), outputs[:2]).get("compare", mode="success", dp=0)
    assert none["right"] is None
    assert none["problem"] == "None of the 1 successes examined is correctly predicted as “cat”."


def test_an_unknown_mode_is_refused(viewer: Viewer) -> None:
    assert viewer.ask("compare", mode="magic", dp=1).status == 400
