"""Which form a value takes, and what the form shows and notes."""

from __future__ import annotations

import datetime
import io
import json
import pathlib
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.viewer import quiet

from endoscope.render import About, View, colours
from endoscope.render.plain import jsonable
from endoscope.render.registry import PICTURES, draw, picture
from endoscope.report import html
from endoscope.report.items import shown
from endoscope.runs.datapoint_values import Item, walk
from endoscope.values import DataclassValue, EnumValue, NamedTupleValue, Opaque

NAN, INF = float("nan"), float("inf")
PLAIN = About()
G = torch.Generator().manual_seed(0)


def pixels(value: Any, about: About = PLAIN, **view: Any) -> np.ndarray:
    png = picture(value, about, View(**view)).png()
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def softmaxed(*shape: int) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, generator=G), -1)


FORMS = [
    ("image", torch.rand(1, 3, 8, 8, generator=G), About("x", "inputs")),
    ("image", torch.rand(1, 1, 8, 8, generator=G), About("x", "inputs")),
    ("image", torch.rand(8, 9, 3, generator=G), About("x", "inputs")),
    ("image", torch.randint(0, 255, (1, 30, 40), dtype=torch.uint8), About("x", "inputs")),
    ("image", torch.randint(0, 255, (3, 30, 40), dtype=torch.uint8), About("x", "debugger")),
    ("image", torch.rand(1, 3, 8, 8, generator=G), About("outputs", "outputs")),  # an autoencoder's
    ("channels", torch.randn(1, 4, 8, 8, generator=G), About("outputs", "outputs")),  # logits of a segmentation
    ("channels", torch.randn(1, 3, 8, 8, generator=G), About("outputs", "outputs", class_names=("sky", "sea", "land"))),
    ("channels", torch.rand(1, 3, 8, 8, generator=G), About("feature_map")),
    ("channels", torch.randn(2, 5, 8, 8, generator=G), About("feature_map")),
    ("channels", torch.randn(1, 2, 4, 8, 8, generator=G), About("volume")),
    ("channels", torch.randn(1, 1, 4, 8, 8, generator=G), About("volume")),
    ("channels", torch.randn(1, 12, 8, 8, generator=G), About("x", "inputs")),
    ("heatmap", torch.randn(1, 5, 6, generator=G), About("output")),
    ("heatmap", torch.randn(4, 6, generator=G), About("weight")),
    ("heatmap", torch.rand(1, 8, 8, generator=G), About("gradcam")),
    ("heatmap", torch.rand(1, 8, 8, generator=G), About("saliency_map")),
    ("attention", softmaxed(1, 2, 5, 5), About("attention")),
    ("attention", softmaxed(1, 2, 5, 5), About("weights")),
    ("attention", softmaxed(1, 5, 7), About("attn")),
    ("mask", torch.randint(0, 3, (1, 16, 16)), About("mask", "labels")),
    ("mask", torch.zeros(1, 16, 16, dtype=torch.bool), About("mask", "labels")),
    ("line", torch.randn(1, 10, generator=G), About("output")),
    ("line", torch.randn(1, 32, 1, 1, generator=G), About("pooled")),
    ("line", [0.1, 0.2, 0.3], About("means")),
    ("histogram", torch.randn(1, 5000, generator=G), About("output")),
    ("table", torch.randn(1, 3, generator=G), About("outputs", "outputs", classification=True)),
    ("table", {"mean": 1.0, "std": NAN}, About("stats")),
    ("table", ["a", "b", "c"], About("tokens")),
    ("table", np.array(["a", "b"]), About("names")),
    ("scalar", torch.tensor([3]), About("labels", "labels")),
    ("scalar", 0.5, About("number")),
    ("scalar", "conv1", About("layer_name")),
    ("scalar", None, About("nothing")),
    ("text", "two\nlines", About("caption")),
    ("text", b"\x00\x01", About("raw")),
    ("text", torch.empty(0, 3), About("empty")),
    ("text", {}, About("empty")),
]


@pytest.mark.parametrize(("form", "value", "about"), FORMS)
def test_values_are_drawn_by_what_they_are(form: str, value: Any, about: About) -> None:
    drawn = draw(value, about)
    assert drawn.form == form
    json.dumps(jsonable(drawn.body), allow_nan=False).encode()
    if form in PICTURES:
        width, height = pixels(value, about).shape[1::-1]
        if "tile" in drawn.body:
            (w, h), gap, body = drawn.body["tile"], drawn.body["gap"], drawn.body
            assert (width, height) == (
                body["columns"] * (w + gap) - gap,
                body["rows"] * (h + gap) - gap,
            )
        else:
            assert (width, height) == (drawn.body["width"], drawn.body["height"])


# ---------------------------------------------------------------- pictures show what they say
def test_an_image_shows_its_values() -> None:
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, 1, 2] = 1.0  # red
    shown = pixels(image, About("x", "inputs"))
    assert shown.shape == (256, 256, 4)
    assert shown[64 + 5, 128 + 5].tolist() == [255, 0, 0, 255]
    assert shown[0, 0].tolist() == [0, 0, 0, 255]


def test_bytes_of_an_image_are_unchanged() -> None:
    image = torch.randint(0, 256, (3, 300, 200), dtype=torch.uint8, generator=G)
    assert (pixels(image, About("x", "inputs"))[..., :3] == image.permute(1, 2, 0).numpy()).all()


def test_an_image_of_other_numbers_notes_its_black_and_white() -> None:
    body = draw(torch.tensor([[[-2.0, 3.0], [0.0, 1.0]]]).repeat(3, 1, 1), About("x", "inputs")).body
    assert body["range"] == [-2.0, 3.0]
    assert body["note"] == "black −2, white 3: the smallest and largest value"


def test_nan_in_an_image_has_its_own_colour() -> None:
    image = torch.rand(1, 3, 4, 4)
    image[0, 1, 0, 0] = NAN
    assert tuple(pixels(image, About("x", "inputs"))[0, 0, :3]) == colours.NAN


def test_channels_are_shown_page_by_page_with_a_note() -> None:
    features = torch.arange(130.0).reshape(1, 130, 1, 1).expand(1, 130, 4, 4).contiguous()
    body = draw(features, About("feature_map")).body
    assert (body["shown"], body["of"], body["pages"]) == (64, 130, 3)
    assert "64 of 130 channels" in body["note"]
    assert body["range"] == [0.0, 129.0]
    last = pixels(features, page=2)
    assert last.shape[0] == body["tile"][1]  # two tiles of one row
    assert tuple(last[0, body["tile"][0] + body["gap"], :3]) == tuple(colours.SEQUENTIAL[-1])
    with pytest.raises(ValueError, match="there is no page 3; there are 3"):
        pixels(features, page=3)


def test_one_channel_alone() -> None:
    features = torch.rand(1, 10, 4, 4, generator=G)
    features[0, 7] = features.max() + 1
    assert pixels(features, zoom=7).shape[:2] == (512, 512)
    assert tuple(pixels(features, zoom=7)[0, 0, :3]) == tuple(colours.SEQUENTIAL[-1])
    for wrong in (10, -1):
        with pytest.raises(ValueError, match="there is no map"):
            pixels(features, zoom=wrong)


def test_volumes_show_their_middle_slice_with_a_note() -> None:
    volume = torch.zeros(1, 2, 5, 4, 4)
    volume[0, 1, 2] = 1.0
    body = draw(volume, About("volume")).body
    assert "slice 2 of 5 (the middle one)" in body["note"]
    shown = pixels(volume)
    assert tuple(shown[0, 0, :3]) == tuple(colours.SEQUENTIAL[0])
    assert tuple(shown[0, -1, :3]) == tuple(colours.SEQUENTIAL[-1])


def test_large_maps_are_thinned_with_a_note() -> None:
    assert "every 2nd pixel" in draw(torch.rand(1, 3, 200, 200), About("feature_map")).body["note"]
    assert "every 3rd row and column" in draw(torch.rand(3000, 50), About("weight")).body["note"]
    assert "every 2nd pixel of 2000 × 30" in draw(torch.rand(1, 3, 30, 2000), About("x", "inputs")).body["note"]


def test_a_heatmap_lies_over_an_image_of_its_proportions() -> None:
    def about(height: int, width: int) -> About:
        return About("gradcam", image=lambda: np.full((height, width, 3), 255, np.uint8))

    cam = torch.rand(1, 7, 7)
    assert draw(cam, about(14, 14)).body["overlay"] is True
    assert "overlay" not in draw(cam, about(14, 15)).body
    assert "overlay" not in draw(cam, About("gradcam")).body
    over, alone = pixels(cam, about(14, 14), overlay=True), pixels(cam, about(14, 14))
    assert over[..., :3].mean() > alone[..., :3].mean()  # the white image shines through
    with pytest.raises(ValueError, match="not an image of the proportions of this map"):
        pixels(cam, about(14, 15), overlay=True)


def test_a_mask_lies_over_the_input() -> None:
    def about(height: int, width: int, section: str = "labels") -> About:
        return About("mask", section, image=lambda: np.full((height, width, 3), 255, np.uint8))

    mask = torch.arange(64).reshape(1, 8, 8) % 3
    assert draw(mask, about(16, 16)).body["overlay"] is True
    for other in (about(16, 15), About("mask", "labels"), about(16, 16, "inputs")):
        assert "overlay" not in draw(mask, other).body
    over, alone = pixels(mask, about(16, 16), overlay=True), pixels(mask, about(16, 16))
    size = over.shape[0] // 8
    for y, x in ((0, 0), (3, 5), (7, 7)):  # 55 % of the class's colour, the rest of the white image
        colour = np.array(colours.category(int(mask[0, y, x])), float)
        assert np.abs(over[y * size, x * size, :3] - (0.45 * 255 + 0.55 * colour)).max() <= 1
    assert (alone != over).any()
    with pytest.raises(ValueError, match="not an image of the proportions of this map"):
        pixels(mask, about(16, 15), overlay=True)


@pytest.mark.parametrize(("mask_side", "image_side"), [(512, 256), (100, 64), (60, 100)])
def test_a_mask_of_another_size_has_no_colours_between_two_classes(mask_side: int, image_side: int) -> None:
    about = About("mask", "labels", image=lambda: np.full((image_side, image_side, 3), 255, np.uint8))
    mask = torch.arange(mask_side * mask_side).reshape(1, mask_side, mask_side) // 7 % 3
    over = pixels(mask, about, overlay=True)[..., :3]
    allowed = {tuple(np.rint(0.45 * 255 + 0.55 * np.array(colours.category(k), float)).astype(int)) for k in range(3)}
    assert {tuple(map(int, one)) for one in over.reshape(-1, 3)} == allowed


def test_attention_has_its_tokens_where_they_fit() -> None:
    weights = softmaxed(1, 2, 3, 3)
    body = draw(weights, About("attention", tokens=["a", "<b>", "c"])).body
    assert (body["heads"], body["tokens"]) == (2, ["a", "<b>", "c"])
    assert (body["queries"], body["keys"], body["of_tokens"]) == (3, 3, 3)
    assert draw(weights, About("attention", tokens=["a"])).body["tokens"] is None
    assert draw(softmaxed(1, 100, 3, 3), About("attention")).body["note"].startswith("64 of 100 heads at once")


def test_values_below_zero_are_not_attention() -> None:
    assert draw(torch.randn(1, 2, 5, 5, generator=G), About("attention_scores")).form == "channels"


def test_a_mask_names_its_classes_by_share() -> None:
    mask = torch.zeros(1, 8, 8, dtype=torch.int64)
    mask[0, 0, :4] = 2
    mask[0, 1, 0] = -1
    body = draw(mask, About("mask", "labels", class_names=("sky", "sea", "ship"))).body
    assert [(one["index"], one["name"], one["share"]) for one in body["classes"]] == [
        (0, "sky", 59 / 64),
        (2, "ship", 4 / 64),
        (-1, None, 1 / 64),
    ]
    assert colours.css(pixels(mask, About("mask", "labels"))[0, 0, :3]) == body["classes"][1]["colour"]


# ---------------------------------------------------------------- numbers show what they say
def test_a_histogram_counts_every_finite_value() -> None:
    x = torch.randn(5000, generator=G)
    body = draw(x, About("x")).body
    counts, edges = np.histogram(x.double().numpy(), bins=64)
    assert sum(body["counts"]) == 5000
    np.testing.assert_allclose(body["edges"], edges)
    assert np.abs(np.array(body["counts"]) - counts).sum() <= 4  # a value at an edge may fall to either side
    x[:3] = NAN
    body = draw(x, About("x")).body
    assert sum(body["counts"]) == 4997
    assert "3 NaN and 0 infinite values are not counted" in body["note"]


def test_outputs_of_a_classification_have_probabilities_with_a_note() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    body = draw(logits, About("outputs", "outputs", class_names=("cat", "dog", "ship"), classification=True)).body
    assert [row[1] for row in body["rows"]] == ["dog", "ship", "cat"]
    assert [row[3] for row in body["rows"]] == pytest.approx(sorted(torch.softmax(logits, 1)[0].tolist(), reverse=True))
    assert body["note"] == "probability: softmax of the outputs"
    already = draw(torch.tensor([[0.2, 0.7, 0.1]]), About("outputs", "outputs", classification=True)).body
    assert [row[3] for row in already["rows"]] == pytest.approx([0.7, 0.2, 0.1])
    assert "the outputs themselves" in already["note"]
    odd = draw(torch.tensor([[NAN, 1.0]]), About("outputs", "outputs", classification=True)).body
    assert [row[3] for row in odd["rows"]] == [None, None]


def test_a_class_has_its_name() -> None:
    names = ("cat", "dog")
    assert draw(torch.tensor([1]), About("labels", "labels", class_names=names)).body == {"value": 1, "name": "dog"}
    assert draw(7, About("target_class", class_names=names)).body == {"value": 7, "name": None}
    assert draw(1, About("channel_dim", class_names=names)).body["name"] is None
    assert draw({"target_class": 1, "n": 1}, About("x", class_names=names)).body["rows"] == [
        ["target_class", "1 (dog)"],
        ["n", 1],
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * 1_000_000, "the first 10,000 of 1,000,000 characters"),
        (list(map(str, range(100_000))), "the first 100 of 100,000 rows"),
        ({f"k{k}": k for k in range(100_000)}, "the first 100 of 100,000 rows"),
        ([0.5] * 100_000, "the first 2,048 of 100,000 values"),
        (b"x" * 100_000, "the first 2,500 of 100,000 bytes"),
    ],
)
def test_long_values_are_cut_with_a_note(value: Any, said: str) -> None:
    body = draw(value, About("x")).body
    assert body["note"] == said
    assert len(json.dumps(body)) < 100_000


# ---------------------------------------------------------------- any value
ODD: list[Any] = [
    torch.tensor(NAN), torch.full((1, 3, 4, 4), NAN), torch.full((1, 3, 4, 4), INF), torch.empty(1, 0, 4, 4),
    torch.full((2, 4, 4), torch.finfo(torch.float64).max, dtype=torch.float64), torch.zeros(1, 1, 1, 1, 1, 1),
    torch.randn(2, 2, 2, 2, 2, 2), torch.randn(1, 1, 1, 1, 1, 1, 1, 1, 2, 3), torch.randn(3, 1, 5), torch.randn(5, 1),
    torch.zeros(4, 4, dtype=torch.complex64), torch.zeros(1, 3, 4, 4, dtype=torch.bfloat16),
    torch.zeros(1, 3, 4, 4, dtype=torch.float8_e4m3fn), torch.eye(5).to_sparse(), quiet.csr(),
    quiet.quantized(1, 3, 4, 4), torch.tensor(True), torch.rand(4, 4) > 0.5,
    torch.full((8, 8), 2**62), torch.full((8, 8), -5), torch.full((8, 8), 255, dtype=torch.uint8),
    torch.randn(4, 4).t(), torch.randn(4, 4, requires_grad=True), torch.conj(torch.randn(4, dtype=torch.complex64)),
    np.float32(1.5), np.array(["a", "b"]), np.array([["a"]]), np.zeros((2, 3), np.uint16), np.array(3),
    np.array(["2024-01-01"], "datetime64[D]"), np.zeros((0,)), np.arange(10)[::-1],
    None, True, 0, -1, 10**400, NAN, INF, 1 + 2j, "", "\ud800", "x" * 300, b"", b"\xff" * 10,
    [], {}, (), set(), [None], [[1, 2], [3]], {1: 2}, {None: None}, {("a", 1): torch.zeros(3)}, {"a": {"b": {"c": 1}}},
    [True, False], [1, NAN, INF], [10**400, 1], {3, 1, 2}, frozenset({"a"}),
    Opaque("user.Thing", "<Thing>"), EnumValue("user.Colour", "RED", 1), EnumValue("user.Flags", None, 3),
    DataclassValue("user.Box", {"w": 1, "t": torch.zeros(2)}),
    NamedTupleValue("user.Pair", ["a", "b"], [1, torch.zeros(2)]),
    datetime.datetime(2024, 2, 29), datetime.date(2024, 2, 29), datetime.timedelta(3),
    pathlib.PurePosixPath("a/b"), object(),
]  # fmt: skip


@pytest.mark.parametrize("section", ["inputs", "labels", "outputs", "debugger"])
@pytest.mark.parametrize("name", ["x", "gradcam", "attention", "mask", "target_class"])
def test_every_value_is_drawn_in_every_place(section: str, name: str) -> None:
    for value in ODD:
        about = About(name, section, class_names=("a",), tokens=["t"], classification=True)
        drawn = draw(value, about)
        assert drawn.form != "problem", (value, drawn.body)
        json.dumps(jsonable(drawn.body), allow_nan=False).encode()
        if drawn.form in PICTURES:
            pixels(value, about)
        for found in walk(section, value, "seen" if section == "debugger" else None):
            assert draw(found.value, about).form != "problem"


def test_a_large_tensor_is_drawn_in_time() -> None:
    t = torch.zeros(1, 16, 2048, 2048, dtype=torch.float16)  # 128 MB
    began = time.process_time()
    body = draw(t, About("feature_map")).body
    pixels(t)
    assert "every 16th pixel" in body["note"]
    assert time.process_time() - began < 20


IDS = torch.tensor([[101, 2023, 2003, 102]])
TOKEN_CASES: list[tuple[Any, About, str]] = [
    (IDS, About("input_ids", "inputs"), "tokens"),
    (IDS, About("", "labels"), "tokens"),
    (torch.tensor([-100, 5, 7]), About("", "labels"), "tokens"),
    ([101, 2023, 2003], About("ids", "outputs"), "tokens"),
    (IDS[0], About("token_ids", "debugger"), "tokens"),
    (IDS[0], About("counts", "debugger"), "line"),
    (IDS[0].float(), About("", "inputs"), "line"),
    (torch.tensor([-3000, 12, 500], dtype=torch.int16), About("audio", "inputs"), "line"),
    (torch.tensor([-3000, 12, 500]), About("audio", "inputs"), "line"),
    (torch.tensor([True, False]), About("", "labels"), "line"),
    (torch.tensor([3]), About("", "labels"), "scalar"),
]


@pytest.mark.parametrize(("value", "about", "form"), TOKEN_CASES)
def test_ids_are_not_a_curve(value: Any, about: About, form: str) -> None:
    assert draw(value, about).form == form


def test_ids_have_their_tokens() -> None:
    words = ("[CLS]", "this", "<b>", "[SEP]")
    body = draw(IDS, About("input_ids", "inputs", tokens=words)).body
    assert (body["values"], body["tokens"], body["shown"], body["of"]) == (IDS[0].tolist(), [*words], 4, 4)
    assert draw(IDS, About("input_ids", "inputs", tokens=words[:3])).body["tokens"] is None
    long = draw(torch.arange(5000), About("input_ids", "inputs")).body
    assert (long["shown"], long["of"], long["note"]) == (1024, 5000, "the first 1,024 of 5,000")
    markup = html.item(shown(Item("inputs", None, ("input_ids",), IDS), About("input_ids", "inputs", tokens=words)))
    assert "this (2023) · &lt;b&gt; (2003)" in markup
