"""The addresses about datapoints, asked as the page asks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.viewer import runs
from tests.viewer.api import Viewer, labelled, run_of
from tests.viewer.payloads import PAYLOADS

from endoscope.render import About, Renderer, register, unregister
from endoscope.values import per_datapoint
from endoscope.viewer import compare_api
from endoscope.viewer.datapoints import CachedDatapoint


# ---------------------------------------------------------------- /api/datapoint
def test_a_datapoint_has_its_scores_label_prediction_and_sections(viewer: Viewer) -> None:
    reply = viewer.get("datapoint", epoch=1, dp=4)
    assert (reply["dp"], reply["run"], reply["epoch"], reply["label"]) == (4, viewer.ids[0], 1, "dog")
    run = run_of(viewer)
    epoch = run.epoch(1)
    assert epoch is not None and epoch.outputs is not None
    logits = epoch.outputs[4]["outputs"].double().flatten()
    best = int(logits.argmax())
    assert reply["prediction"]["class"] == best
    assert reply["prediction"]["name"] == runs.CLASS_NAMES[best]
    assert reply["prediction"]["probability"] == pytest.approx(torch.softmax(logits, 0)[best].item())
    assert reply["prediction"]["how"] == "softmax of the outputs"
    sections = [section["name"] for section in reply["sections"]]
    assert sections == ["inputs", "labels", "meta_info", "outputs", "debugger"]
    assert all(section["problem"] is None and section["items"] for section in reply["sections"])


def test_scores_have_their_rank_among_all(viewer: Viewer) -> None:
    rows = runs.usual_rows(2)
    for dp in (0, 5, 11):
        scores = {one["name"]: one for one in viewer.get("datapoint", epoch=2, dp=dp)["scores"]}
        worse = sum(row["loss"] > rows[dp]["loss"] for row in rows.values())
        assert scores["loss"]["value"] == pytest.approx(rows[dp]["loss"])
        assert (scores["loss"]["rank"], scores["loss"]["of"]) == (worse + 1, 12)
        assert scores["loss"]["tied"] == sum(row["loss"] == rows[dp]["loss"] for row in rows.values())
        assert scores["loss"]["fails"] is (worse == 0)  # 5 % of 12 is one
    nan = {one["name"]: one for one in viewer.get("datapoint", epoch=1, dp=3)["scores"]}["loss"]
    assert (nan["value"], nan["rank"], nan["fails"]) == ("NaN", 1, True)


def test_equal_scores_have_equal_ranks(viewer: Viewer) -> None:
    wrong = [dp for dp, row in runs.usual_rows(2).items() if row["accuracy"] == 0.0]
    assert len(wrong) > 1
    for dp in wrong:
        reply = {one["name"]: one for one in viewer.get("datapoint", epoch=2, dp=dp)["scores"]}["accuracy"]
        assert (reply["rank"], reply["tied"], reply["of"]) == (1, len(wrong), 12)
    right = {one["name"]: one for one in viewer.get("datapoint", epoch=2, dp=0)["scores"]}["accuracy"]
    assert (right["rank"], right["tied"]) == (len(wrong) + 1, 12 - len(wrong))


@pytest.mark.parametrize("percentile", ["0", "5", "30", "62.5"])
def test_every_address_has_the_failures_of_the_map(viewer: Viewer, percentile: str) -> None:
    reply = viewer.get("map", epoch=2, metric="loss", percentile=percentile)
    fails = dict(zip(reply["indices"], map(bool, reply["fails"][0]), strict=True))
    for dp, expected in fails.items():
        query = {"epoch": 2, "dp": dp, "metric": "loss", "percentile": percentile}
        shown = {one["name"]: one["fails"] for one in viewer.get("datapoint", **query)["scores"]}
        assert shown["loss"] is expected
        pair = viewer.get("compare", mode="success", **query)
        assert {one["name"]: one["fails"] for one in pair["left"]["scores"]}["loss"] is expected
        if pair["right"] is not None:
            assert not fails[pair["right"]["dp"]]
            assert not {one["name"]: one["fails"] for one in pair["right"]["scores"]}["loss"]
    assert sum(fails.values()) == {"0": 0, "5": 1, "30": 4, "62.5": 8}[percentile]


def test_every_value_is_drawn_by_what_it_is(viewer: Viewer) -> None:
    found = {key: item["renderer"] for key, item in viewer.items(epoch=1, dp=4).items()}
    assert found == {
        (None, "inputs"): "image",
        (None, "labels"): "scalar",
        (None, "idx"): "scalar",
        (None, "image_filepath"): "scalar",
        (None, "outputs"): "table",
        ("head", "output"): "line",
        ("head", "layer_name"): "scalar",
        ("encoder", "output"): "heatmap",
        ("encoder", "layer_name"): "scalar",
        ("features", "feature_map"): "channels",
        ("features", "layer_name"): "scalar",
        ("video", "feature_map"): "channels",
        ("video", "layer_name"): "scalar",
        ("attention", "attention"): "attention",
        ("attention", "values"): "table",
        ("gradcam", "gradcam"): "heatmap",
        ("gradcam", "target_class"): "scalar",
        ("text", "caption"): "scalar",
        ("activations/conv1", "activation_stats/mean"): "scalar",
        ("activations/conv1", "activation_stats/sparsity"): "scalar",
        ("activations/conv1", "layer_name"): "scalar",
        ("number", "number"): "scalar",
    }


def test_shape_dtype_and_statistics_match_the_tensor(viewer: Viewer) -> None:
    run = run_of(viewer)
    epoch = run.epoch(1)
    assert epoch is not None and epoch.debugger is not None
    for (debugger, name), item in viewer.items(epoch=1, dp=4).items():
        if item["shape"] is None or debugger is None:
            continue
        value = epoch.debugger[4][debugger]
        for key in name.split("/"):
            value = value[key]
        x = value.double()
        stats = item["stats"]
        assert (item["shape"], item["dtype"]) == ([*value.shape], str(value.dtype).removeprefix("torch."))
        for key, expected in {"min": x.min(), "mean": x.mean(), "max": x.max()}.items():
            assert float(stats[key]) == pytest.approx(expected.item(), nan_ok=True)
        if x.numel() > 1:
            assert float(stats["std"]) == pytest.approx(x.std().item(), nan_ok=True)
        else:
            assert stats["std"] is None
        assert stats["non_finite"] == int((~x.isfinite()).sum())
        assert (stats["nan"], stats["inf"], stats["count"]) == (int(x.isnan().sum()), 0, x.numel())
    assert viewer.items(epoch=1, dp=4)["features", "feature_map"]["stats"]["nan"] == 1


def test_the_snippet_loads_the_value(viewer: Viewer) -> None:
    for item in viewer.items(epoch=1, dp=4).values():
        scope: dict[str, Any] = {}
        exec(item["snippet"], scope)
        value = scope["value"]
        if item["shape"] is not None:
            assert [*value.shape] == item["shape"]
        elif item["renderer"] == "scalar":
            assert value == item["body"]["value"]


def test_attention_has_the_tokens_of_its_debugger(viewer: Viewer) -> None:
    assert viewer.items(epoch=1, dp=4)["attention", "attention"]["body"]["tokens"] == runs.TOKENS


def test_ids_are_the_same_in_every_epoch_and_for_every_datapoint(viewer: Viewer) -> None:
    first, later = viewer.items(epoch=1, dp=4), viewer.items(epoch=2, dp=7)
    assert {key: item["id"] for key, item in first.items()} == {key: item["id"] for key, item in later.items()}


def test_an_epoch_without_pages_says_which_have_some(viewer: Viewer) -> None:
    sections = {one["name"]: one for one in viewer.get("datapoint", epoch=0, dp=4)["sections"]}
    assert sections["inputs"]["items"]
    assert sections["debugger"]["problem"] == "This epoch has no stored debug outputs. Epochs that have some: 1, 2."
    assert sections["outputs"]["problem"] == "This epoch has no stored outputs. Epochs that have some: 1, 2."


@pytest.mark.parametrize("dp", [12, -1, 10**18])
def test_a_datapoint_that_is_not_there(viewer: Viewer, dp: int) -> None:
    answer = viewer.ask("datapoint", epoch=1, dp=dp)
    assert answer.status == 404
    assert answer.json["error"]["message"] == f"this epoch has no datapoint {dp}"


@pytest.mark.parametrize(("query", "status"), [({"dp": "x"}, 400), ({}, 400), ({"dp": 1, "epoch": 77}, 404)])
def test_queries_that_cannot_be_answered(viewer: Viewer, query: dict[str, Any], status: int) -> None:
    for what in ("datapoint", "compare", "image"):
        answer = viewer.ask(what, **query)
        assert answer.status == status
        assert answer.json["error"]["message"]


def test_an_evaluation_has_its_datapoints_too(two: Viewer) -> None:
    reply = two.get("datapoint", run=two.ids[1], dp=4)
    assert (reply["epoch"], reply["label"]) == ("eval", "dog")
    assert reply["sections"][4]["items"]


def test_notes_of_the_record_are_shown(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run", epochs=2)
    seen = {(0, 1): runs.seen_of([0, 1])}
    runs.write_pages(folder / "epoch_1" / "debugger", seen, notes={"failures": {"broken": "ValueError: no"}})
    assert Viewer(tmp_path).get("datapoint", epoch=1, dp=0)["notes"] == {"failures": {"broken": "ValueError: no"}}


def test_damage_is_shown_in_its_place_beside_the_rest(tmp_path: Path) -> None:
    runs.damaged(tmp_path / "run")
    viewer = Viewer(tmp_path)
    problems, whole = 0, 0
    for dp in runs.INDICES:
        reply = viewer.get("datapoint", epoch=1, dp=dp)
        assert reply["sections"][0]["items"][0]["renderer"] == "image"
        items = reply["sections"][4]["items"]
        problems += sum(item["renderer"] == "problem" for item in items)
        whole += sum(item["renderer"] != "problem" for item in items)
        assert str(tmp_path) not in json.dumps([section["problem"] for section in reply["sections"]])
        assert all(str(tmp_path) not in json.dumps(item["body"]) for item in items)
    assert problems > 0
    assert whole > 100


def test_tensors_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.training(tmp_path / "run", epochs=2)
    big = {"big": {"t": torch.zeros(2, 1 << 20)}, "small": {"t": torch.zeros(2, 3)}}
    runs.write_pages(folder / "epoch_1" / "debugger", {(0, 1): big})
    monkeypatch.setattr(CachedDatapoint.read, "__kwdefaults__", {"most": 1 << 20})
    found = Viewer(tmp_path).items(epoch=1, dp=0)
    assert found["big", "big"]["renderer"] == "problem"
    assert "has 4 MB of tensors, more than the 1 MB shown here" in found["big", "big"]["body"]["message"]
    assert found["small", "t"]["renderer"] == "line"


# ---------------------------------------------------------------- /api/image
def test_every_picture_has_the_announced_size(viewer: Viewer) -> None:
    seen = 0
    for item in viewer.items(epoch=1, dp=4).values():
        body = item["body"]
        if "src" not in body:
            continue
        height, width = viewer.pixels(body["src"]).shape[:2]
        if "tile" in body:
            (w, h), gap = body["tile"], body["gap"]
            assert (width, height) == (body["columns"] * (w + gap) - gap, body["rows"] * (h + gap) - gap)
        else:
            assert (width, height) == (body["width"], body["height"])
        seen += 1
    assert seen == 6


def test_a_channel_alone_and_the_overlay(viewer: Viewer) -> None:
    found = viewer.items(epoch=1, dp=4)
    assert viewer.pixels(found["features", "feature_map"]["body"]["src"] + "&zoom=3").shape[:2] == (512, 512)
    cam = found["gradcam", "gradcam"]["body"]
    assert (viewer.pixels(cam["overlay"]) != viewer.pixels(cam["src"])).any()


def test_a_picture_may_be_stored_and_is_revalidated_by_its_tag(viewer: Viewer) -> None:
    src = viewer.items(epoch=1, dp=4)["features", "feature_map"]["body"]["src"]
    first = viewer.client.get(src)
    assert first.header("cache-control") == "private, max-age=86400, immutable"
    tag = first.header("etag")
    assert tag is not None
    again = viewer.client.get(src, headers=[("if-none-match", tag)])
    assert (again.status, again.body) == (304, b"")
    assert viewer.client.get(src + "&zoom=1", headers=[("if-none-match", tag)]).status == 200
    stale = viewer.client.get(src.replace("v=", "v=0"))
    assert stale.header("cache-control") == "private, no-cache"


def test_a_picture_of_another_value_has_another_address_and_tag(viewer: Viewer) -> None:
    srcs = [viewer.items(epoch=e, dp=4)["features", "feature_map"]["body"]["src"] for e in (1, 2)]
    tags = {viewer.client.get(src).header("etag") for src in srcs}
    assert len(tags) == 2


@pytest.mark.parametrize(
    "more", ["&zoom=10", "&zoom=-1", "&page=1", "&page=-1", "&page=99999999", "&overlay=1&zoom=99"]
)
def test_pictures_that_are_not_there(viewer: Viewer, more: str) -> None:
    answer = viewer.client.get(viewer.items(epoch=1, dp=4)["features", "feature_map"]["body"]["src"] + more)
    assert answer.status == 404


@pytest.mark.parametrize("item", ["", "d", "nothing", "../../etc/passwd", "x" * 5000, "d" + "0" * 24])
def test_items_that_are_not_there(viewer: Viewer, item: str) -> None:
    for what in ("image", "time"):
        assert viewer.ask(what, epoch=1, dp=4, item=item).status == 404


def test_an_item_without_a_picture(viewer: Viewer) -> None:
    item = viewer.items(epoch=1, dp=4)["head", "output"]["id"]
    answer = viewer.ask("image", epoch=1, dp=4, item=item)
    assert answer.status == 404
    assert answer.json["error"]["message"] == "a value drawn as line has no picture"


class Wrong(Renderer):
    form = "image"

    def body(self, value: Any, about: About) -> dict[str, Any]:
        return {"width": 1, "height": 1, "shown": 1, "of": 1}

    def picture(self, value: Any, about: About, view: Any) -> Any:
        raise RuntimeError("no picture today")


@pytest.fixture
def wrong() -> Iterator[None]:
    register("features", Wrong())
    yield
    unregister("features")


@pytest.mark.usefixtures("wrong")
def test_a_broken_renderer_affects_nothing_else(viewer: Viewer) -> None:
    found = viewer.items(epoch=1, dp=4)
    src = found["features", "features"]["body"]["src"]
    answer = viewer.client.get(src)
    assert answer.status == 404
    assert answer.json["error"]["message"] == "this picture could not be drawn: RuntimeError: no picture today"
    assert viewer.pixels(found["video", "feature_map"]["body"]["src"]).size


# ---------------------------------------------------------------- /api/worst
def test_the_worst_come_first_with_their_change(viewer: Viewer) -> None:
    reply = viewer.get("worst", epoch=2, metric="loss", n=4)
    now, before = runs.usual_rows(2), runs.usual_rows(1)
    order = sorted(now, key=lambda k: (-now[k]["loss"], k))[:4]
    assert [row["dp"] for row in reply["rows"]] == order
    for row in reply["rows"]:
        change = now[row["dp"]]["loss"] - before[row["dp"]]["loss"]
        assert row["value"] == pytest.approx(now[row["dp"]]["loss"])
        assert row["change"] == ("NaN" if change != change else pytest.approx(change))
        assert row["label"] == runs.CLASS_NAMES[row["dp"] % 3]
        assert row["prediction"]["name"] in runs.CLASS_NAMES


def test_nan_is_the_worst_and_the_first_epoch_has_no_change(viewer: Viewer) -> None:
    assert viewer.get("worst", epoch=1, metric="loss", n=1)["rows"][0]["dp"] == 3
    assert viewer.get("worst", epoch=1, metric="loss", n=1)["rows"][0]["value"] == "NaN"
    assert {row["change"] for row in viewer.get("worst", epoch=0, metric="loss")["rows"]} == {None}
    assert viewer.ask("worst", n=0).status == viewer.ask("worst", n=201).status == 400
    assert viewer.ask("worst", metric="nothing").status == 404


def test_outputs_that_are_no_map_for_each_class_have_no_predicted_class(tmp_path: Path) -> None:
    masks = torch.randint(0, 3, (2, 8, 8), generator=torch.Generator().manual_seed(1))
    viewer = labelled(tmp_path, masks, torch.rand(2, 2, 8, 8))  # two channels of the mask's size, three names
    assert [name for _, name in viewer.items(dp=1) if "predicted" in name] == []


def test_a_segmentation_has_its_predicted_mask_in_the_colours_of_the_label(tmp_path: Path) -> None:
    masks = torch.randint(0, 3, (2, 8, 8), generator=torch.Generator().manual_seed(1))
    outputs = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    viewer = labelled(tmp_path, masks, outputs)
    found = viewer.items(dp=1)
    label, predicted = found[None, "labels"], found[None, "predicted class"]
    assert (label["renderer"], predicted["renderer"]) == ("mask", "mask")
    assert found[None, "outputs"]["renderer"] == "channels"
    expected = outputs[1].argmax(0)
    reply = {one["index"]: one for one in predicted["body"]["classes"]}
    assert {k: one["share"] * 64 for k, one in reply.items()} == {k: (expected == k).sum().item() for k in reply}
    assert {one["name"] for one in reply.values()} == {*runs.CLASS_NAMES}
    colours = {one["index"]: one["colour"] for one in label["body"]["classes"]}
    assert colours == {k: one["colour"] for k, one in reply.items()}
    pixels = viewer.pixels(predicted["body"]["src"])
    size = pixels.shape[0] // 8
    for y, x in ((0, 0), (3, 5), (7, 7)):
        colour = "#" + "".join(f"{c:02x}" for c in pixels[y * size, x * size, :3])
        assert colour == colours[int(expected[y, x])]
    space: dict[str, Any] = {}
    exec(predicted["snippet"], space)
    assert (torch.as_tensor(space["value"]).reshape(8, 8) == expected).all()
    strip = viewer.get("time", dp=1, item=predicted["id"])
    assert strip["epochs"][0]["item"]["renderer"] == "mask"


# ---------------------------------------------------------------- any run
@pytest.mark.parametrize(
    "make", [runs.training, runs.evaluation, runs.live, runs.crashed, runs.killed, runs.damaged, runs.just_started]
)
def test_every_kind_of_run_has_an_answer(make: Callable[[Path], Path], tmp_path: Path) -> None:
    make(tmp_path / "run")
    viewer = Viewer(tmp_path)
    for what in ("datapoint", "worst", "compare"):
        for mode in compare_api.MODES:
            for epoch in ("", "0", "1", "eval"):
                answer = viewer.ask(what, dp=3, epoch=epoch, mode=mode)
                assert answer.status in (200, 404), answer.text
                assert answer.error is None
                if answer.status == 404:
                    assert answer.json["error"]["message"]


@pytest.mark.parametrize("k", range(len(PAYLOADS)))
def test_text_of_a_run_comes_out_as_plain_json(k: int, tmp_path: Path) -> None:
    text = PAYLOADS[k]
    runs.hostile(tmp_path / "run", text)
    viewer = Viewer(tmp_path)
    answer = viewer.ask("datapoint", epoch=0, dp=0)
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    reply = answer.json
    shown = text.encode(errors="replace").decode()
    (debugger,) = {item["debugger"] for item in reply["sections"][4]["items"]}
    assert debugger == shown
    assert reply["label"] == shown
    assert [score["name"] for score in reply["scores"]] == [shown]
    assert {item["renderer"] for item in reply["sections"][4]["items"]} <= {"channels", "table", "scalar", "text"}
    for item in reply["sections"][4]["items"]:
        assert item["id"].isalnum()
        if "src" in item["body"]:
            assert set(item["body"]["src"]) <= set(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/?&=_-"
            )
    assert viewer.ask("worst", epoch=0).status == 200
    assert viewer.ask("compare", epoch=0, dp=0, other=1).status == 200


def test_labels_may_be_text(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run", epochs=2)
    inputs = {**runs.inputs_of([0, 1]), "labels": per_datapoint(["a cat", "b" * 1000])}
    runs.write_pages(folder / "datapoints", {(0, 1): inputs})
    viewer = Viewer(tmp_path)
    assert viewer.get("datapoint", epoch=1, dp=0)["label"] == "a cat"
    assert viewer.get("datapoint", epoch=1, dp=1)["label"] is None


# ---------------------------------------------------------------- a debugger without a trainer
def test_the_datapoints_of_a_debugger_alone_are_listed_and_shown(tmp_path: Path) -> None:
    indices = [*range(5, 60, 2)]
    batches = {tuple(indices[k : k + 4]): runs.seen_of(indices[k : k + 4]) for k in range(0, len(indices), 4)}
    runs.write_pages(tmp_path / "mine" / "epoch_4" / "debugger", batches)
    viewer = Viewer(tmp_path)
    assert viewer.client.get("/").header("location") == f"/map?run={viewer.ids[0]}"
    reply = viewer.get("captured")
    assert reply == {
        "epoch": 4,
        "first": 0,
        "of": 28,
        "indices": indices,
        "kept": {"inputs": 0, "outputs": 0, "debugger": 28},
    }
    assert viewer.get("captured", first=26, n=5)["indices"] == indices[26:]
    assert viewer.get("captured", first=100)["indices"] == []
    sections = {one["name"]: one for one in viewer.get("datapoint", dp=reply["indices"][3])["sections"]}
    assert sections["debugger"]["items"]
    assert sections["inputs"]["problem"] == "This run has no stored inputs."
    for wrong in ({"n": 0}, {"n": 10_001}, {"first": -1}):
        assert viewer.ask("captured", **wrong).status == 400


def test_captured_lists_every_datapoint_with_saved_values(viewer: Viewer) -> None:
    reply = viewer.get("captured", epoch=1)
    assert (reply["of"], reply["indices"]) == (12, runs.INDICES)
    assert reply["kept"] == {"inputs": 12, "outputs": 12, "debugger": 12}
    assert viewer.get("captured", epoch=0)["kept"] == {"inputs": 12, "outputs": 0, "debugger": 0}
