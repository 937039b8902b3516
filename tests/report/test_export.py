"""``endoscope view --export``: one page from a run's files, which says what they say, runs nothing and asks nobody."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from tests.viewer import runs

from endoscope.cli import main
from endoscope.errors import ConfigError
from endoscope.report import export as module
from endoscope.report.export import Wanted, export, made_page
from endoscope.report.shown import value_text
from endoscope.runs import Run

PAYLOADS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "<a href=javascript:alert(1)>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "--><script>alert(1)</script><!--",
    "<meta http-equiv=refresh content='0;url=http://example.invalid'>",
]
ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "link",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "b",
        "a",
        "section",
        "div",
    ),
    *("figure", "figcaption", "svg", "path", "circle", "rect", "table", "tr", "th", "td", "img", "pre"),
}


class Page(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(*folders: Path, **wanted: Any) -> Page:
    return Page(made_page(folders, Wanted(**wanted)))


def view(*args: object) -> Result:
    return CliRunner().invoke(main, ["view", *map(str, args)], catch_exceptions=False)


def sections(content: str) -> list[str]:
    return re.findall(r'<section id="run0-dp(-?\d+)">', content)


# ---------------------------------------------------------------- what it says
def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    run = Run(runs.training(tmp_path / "run"))
    table = run.epochs[-1].scores
    assert table is not None
    found = page(run.path, metric="loss")
    for name, value in table.aggregated.items():
        assert f"{name} {value:.4g} {table.directions[name]}" in found.text
    worst = table.indices[table.worst_first("loss")].tolist()
    assert sections(made_page([run.path], Wanted(metric="loss"))) == [str(idx) for idx in worst]  # all twelve
    for idx in worst:
        value = float(table.values["loss"][table.indices.tolist().index(idx)])
        assert re.search(rf"Datapoint {idx} of run, epoch 2 .*? loss {re.escape(f'{value:.4g}')} ", found.text)
    losses = [epoch.losses["loss"].mean() for epoch in run.epochs]
    assert f"training loss {min(losses):.4g} to {max(losses):.4g} epoch 0 to 2; last {losses[-1]:.4g}" in found.text
    assert "datapoints 12 · fail 1 (of the worst 5 %, and every NaN)" in found.text


def test_statistics_of_a_captured_tensor(tmp_path: Path) -> None:
    run = Run(runs.training(tmp_path / "run"))
    debugger = run.epochs[-1].debugger
    assert debugger is not None
    value = debugger[4]["encoder"]["output"]
    shape = "×".join(map(str, value.shape))
    parts = {"min": value.min(), "mean": value.mean(), "max": value.max(), "std": value.std()}
    numbers = ", ".join(f"{name} {part:.4g}" for name, part in parts.items()).replace("-", "−")
    assert "min −" in numbers
    said = f"{shape} · float32 · {numbers} of all values · 0 NaN, 0 infinite"
    assert said in page(run.path, datapoints=(4,)).text


def test_every_section_and_debugger_is_there(tmp_path: Path) -> None:
    found = page(runs.training(tmp_path / "run"), datapoints=(5,))
    for name in ("Inputs", "Labels", "Meta info", "Outputs", "Debug outputs", *runs.seen_of([0])):
        assert name in found.text
    assert "images/5.png" in found.text
    assert found.count("img") >= 6  # map, input, features, video, attention, gradcam
    assert all(attrs["src"].startswith("data:image/png;base64,") for tag, attrs in found.tags if tag == "img")  # type: ignore[union-attr]


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """A run whose debugger gave a mask and a heatmap over an image, and a class without a name."""
    folder = runs.training(tmp_path / "masked", epochs=1)
    mask = torch.zeros(2, 8, 8, dtype=torch.int64)
    mask[:, :4] = 1
    seen = {"seg": {"mask": mask}, "gradcam": {"gradcam": torch.rand(2, 8, 8)}}
    runs.write_pages(folder / "epoch_0" / "debugger", {(0, 1): seen})
    runs.write_pages(folder / "epoch_0" / "outputs", {(0, 1): runs.outputs_of([0, 1])})
    return folder


def test_masks_and_heatmaps_are_shown_alone_and_over_the_input(masked: Path) -> None:
    content = made_page([masked], Wanted(datapoints=(1,)))
    pictures = {attrs["alt"]: attrs for tag, attrs in Page(content).tags if tag == "img"}
    for name in ("mask", "gradcam"):
        alone, over = (pictures[f"{name}, 1×8×8, {caption}"] for caption in ("alone", "over the input"))
        assert alone["src"] != over["src"]
        assert (alone["width"], alone["height"]) == (over["width"], over["height"]) == ("256", "256")
    captions = re.findall(r"<figcaption>(alone|over the input)</figcaption>", content)
    assert captions == ["alone", "over the input"] * 2
    assert pictures["inputs, 1×3×8×8"]["width"] == "256"  # one picture has no caption


def test_classes_of_a_mask_have_their_colours(masked: Path) -> None:
    content = made_page([masked], Wanted(datapoints=(1,)))
    rows = re.findall(r'<tr><td><svg [^>]*><rect [^>]*fill="(#[0-9a-f]{6})"/></svg> (\d)</td><td>(\w+)</td>', content)
    assert [(index, name) for _, index, name in rows] == [("0", "cat"), ("1", "dog")]
    assert len({colour for colour, _, _ in rows}) == 2
    assert "<td>#" not in content


def test_names_that_only_repeat_are_left_out(masked: Path) -> None:
    assert "class name output probability" in page(masked, datapoints=(1,)).text
    assert "1 (dog)" in page(masked, datapoints=(1,)).text
    runs.write_about(masked, epochs=1, class_names=["0", "1", "2"])
    found = page(masked, datapoints=(1,)).text
    assert "class output probability" in found
    assert "1 (1)" not in found


def test_scores_have_a_heading_of_their_own(tmp_path: Path) -> None:
    found = page(runs.training(tmp_path / "run"), datapoints=(5,))
    assert re.search(r"Meta info .* Scores label ship · predicted .* loss .* Outputs", found.text)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1.5, "−1.5"),
        (-1e-7, "−1e−07"),
        (-0.0, "0"),
        (-3, "−3"),
        (-(10**400), f"−1{'0' * 400}"),
        (float("-inf"), "−∞"),
        (float("nan"), "NaN"),
        (None, "–"),
        (True, "True"),
        ("a-b", "a-b"),
    ],
)
def test_numbers_are_written_as_in_the_viewer(value: Any, said: str) -> None:
    assert value_text(value) == said


def test_infinite_outputs_are_numbers(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run", epochs=1)
    outputs = torch.tensor([[float("-inf"), 1.0, 2.0]] * 2)
    runs.write_pages(folder / "epoch_0" / "outputs", {(0, 1): {"outputs": outputs}})
    found = page(folder, datapoints=(1,)).text
    assert "0 cat −∞ –" in found
    assert "Infinity" not in found


def test_chosen_datapoints_and_epochs(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    content = made_page([folder], Wanted(datapoints=(7, 2), epochs=(1, 2)))
    assert sections(content) == ["7", "2"]
    assert content.count("<h2>Epoch 1</h2>") == content.count("<h2>Epoch 2</h2>") == 2
    assert "<h2>Epoch 0</h2>" not in content
    assert made_page([folder], Wanted(worst=1, epochs="all")).count("<h2>Epoch ") == 3
    assert sections(made_page([folder], Wanted(worst=0))) == []


def test_nan_is_the_worst(tmp_path: Path) -> None:
    content = made_page([runs.training(tmp_path / "run")], Wanted(metric="loss", worst=1, epochs=(1,)))
    assert sections(content) == ["3"]


def test_several_runs_and_an_evaluation(tmp_path: Path) -> None:
    runs.training(tmp_path / "all" / "first")
    runs.evaluation(tmp_path / "all" / "second")
    found = page(tmp_path / "all", worst=1, epochs=(2,))
    assert "Run first" in found.text
    assert "Run second" in found.text
    assert "the evaluation" in found.text


def test_datapoint_that_one_run_lacks_says_so(tmp_path: Path) -> None:
    runs.training(tmp_path / "all" / "a")
    runs.training(tmp_path / "all" / "b", indices=[*range(100, 112)])
    found = page(tmp_path / "all", datapoints=(3,))
    assert "datapoint 3 has no score in epoch 2" in found.text
    assert "No outputs were kept of datapoint 3" in found.text


# ---------------------------------------------------------------- bounds
def test_large_pictures_are_shrunk_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.training(tmp_path / "run")
    assert "shrunk" not in page(folder, datapoints=(1,)).text
    monkeypatch.setattr("endoscope.report.export_html._MOST_PICTURE", 300)
    assert re.search(r"shrunk: every (2nd|4th|8th) pixel", page(folder, datapoints=(1,)).text)


def test_full_page_leaves_out_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.training(tmp_path / "run")
    whole = made_page([folder], Wanted(metric="loss"))
    assert "left out" not in whole
    monkeypatch.setattr(module, "MOST_BYTES", len(whole) // 3)
    short = made_page([folder], Wanted(metric="loss"))
    assert len(short) < len(whole) / 2
    assert re.search(r"\d+ datapoints are left out: a page holds about", short)


def test_stated_size(tmp_path: Path) -> None:
    size = export([runs.training(tmp_path / "run")], tmp_path / "a.html", Wanted())
    stated = re.search(r"size about <b>([0-9.]+) MB", (tmp_path / "a.html").read_text())
    assert stated is not None
    assert size == (tmp_path / "a.html").stat().st_size
    assert abs(float(stated[1]) - size / 1e6) < 0.02


# ---------------------------------------------------------------- safety
@pytest.mark.parametrize("payload", PAYLOADS)
def test_texts_of_a_run_stay_texts(tmp_path: Path, payload: str) -> None:
    found = page(runs.hostile(tmp_path / "run", payload))
    assert {tag for tag, _ in found.tags} <= ALLOWED
    assert payload in " ".join(found.texts)  # seen as it is written
    for tag, attrs in found.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        assert attrs.get("href", "#").startswith(("#", "data:,"))  # type: ignore[union-attr]
        assert tag != "meta" or attrs.get("http-equiv") in (None, "Content-Security-Policy")
    assert "base-uri 'none'" in str(found.tags)


def test_twin_a_script_would_be_found() -> None:
    assert not {tag for tag, _ in Page("<p><script>alert(1)</script>").tags} <= ALLOWED


def test_policy_allows_nothing_but_its_style_and_pictures(tmp_path: Path) -> None:
    found = page(runs.training(tmp_path / "run"))
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert found.count("script") == 0


def test_no_place_of_this_machine_is_told(tmp_path: Path) -> None:
    for make in (runs.training, runs.damaged, runs.crashed):
        assert str(tmp_path) not in made_page([make(tmp_path / make.__name__)], Wanted(epochs="all"))


# ---------------------------------------------------------------- odd runs
def test_damaged_run_shows_the_rest(tmp_path: Path) -> None:
    found = page(runs.damaged(tmp_path / "run"), epochs="all", datapoints=tuple(runs.INDICES))
    assert "config.json" in found.text
    assert "Epoch 2" in found.text
    assert "Epoch 1" in found.text


@pytest.mark.parametrize("make", [runs.crashed, runs.killed, runs.live])
def test_unfinished_runs(tmp_path: Path, make: Any) -> None:
    found = page(make(tmp_path / "run"))
    assert "Run run" in found.text
    assert Run(tmp_path / "run").status in found.text


def test_nothing_to_export_is_an_error_that_says_what_there_is(tmp_path: Path) -> None:
    def said(folder: Path, *options: object) -> str:
        done = view(folder, "--export", tmp_path / "a.html", *options)
        assert done.exit_code == 2
        assert not (tmp_path / "a.html").exists()
        return done.stderr

    nothing = runs.empty(tmp_path / "nothing")
    assert f"there is nothing to export: no run is in {str(nothing)!r}" in said(nothing)
    started = runs.just_started(tmp_path / "started")
    assert "no run has a score or a loss yet; nothing was captured either" in said(started)
    captured = tmp_path / "captured"
    runs.write_pages(captured / "epoch_4" / "debugger", {(5, 7): runs.seen_of([5, 7])})
    text = "no run has a score or a loss yet; there are 2, from 5 to 7, of which --datapoints takes some"
    assert text in said(captured)
    assert "no run has a datapoint 6 in these epochs; there are 2, from 5 to 7" in said(captured, "--datapoints", "5,6")
    assert "Datapoint 7 of captured" in page(captured, datapoints=(7,)).text
    evaluated = runs.evaluation(tmp_path / "evaluated")
    assert "an evaluation has no epoch 99; leave --epochs out" in said(evaluated, "--epochs", "99")


def test_some_empty_folder_beside_a_run_is_said(tmp_path: Path) -> None:
    found = page(runs.training(tmp_path / "run"), runs.empty(tmp_path / "nothing"))
    assert "there is no run in 'nothing'" in found.text


def test_the_run_is_left_as_it_was(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    before = runs.contents(folder)
    export([folder], tmp_path / "a.html", Wanted(epochs="all"))
    assert runs.contents(folder) == before


# ---------------------------------------------------------------- the command
def test_command_writes_and_refuses_to_overwrite(tmp_path: Path) -> None:
    folder, file = runs.training(tmp_path / "run"), tmp_path / "a.html"
    done = view(folder, "--export", file, "--worst", 2, "--metric", "loss")
    assert done.exit_code == 0
    assert re.fullmatch(rf"wrote {re.escape(str(file))} \([0-9.]+ MB\); it opens .*\n", done.stdout)
    assert len(sections(file.read_text())) == 2
    before = file.read_bytes()
    again = view(folder, "--export", file)
    assert again.exit_code == 2
    assert "is there already; choose another name, or replace it with --overwrite" in again.stderr
    assert file.read_bytes() == before
    assert view(folder, "--export", file, "--overwrite").exit_code == 0
    assert len(sections(file.read_text())) == 12
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--datapoints", "3,x"], "--datapoints is '3,x'; expected whole numbers with commas"),
        (["--datapoints", "3", "--worst", "2"], "choose one of them"),
        (["--epochs", "first"], "expected last, all, or whole numbers"),
        (["--epochs", "9"], "no run has an epoch 9; there are 0 to 2"),
        (["--datapoints", "3,999"], "no run has a datapoint 999 in these epochs; there are 12, from 0 to 11"),
        (["--metric", "los"], "no datapoint has the score 'los'; closest: 'loss'"),
        (["--worst", "5000"], "at most 1000 datapoints"),
    ],
)
def test_mistakes_are_told_before_a_file_is_made(tmp_path: Path, options: list[str], said: str) -> None:
    folder = runs.training(tmp_path / "run")
    done = view(folder, "--export", tmp_path / "a.html", *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "a.html").exists()


def test_options_of_the_export_need_it(tmp_path: Path) -> None:
    done = view(runs.training(tmp_path / "run"), "--worst", 3)
    assert done.exit_code == 2
    assert "--worst belongs to --export FILE.html" in done.stderr


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run")
    with pytest.raises(ConfigError, match="is a folder"):
        export([folder], tmp_path, Wanted())
    with pytest.raises(ConfigError, match="make it first"):
        export([folder], tmp_path / "no" / "a.html", Wanted())


# ---------------------------------------------------------------- in a browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_from_disk_in_chromium(tmp_path: Path, theme: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    runs.hostile(tmp_path / "all" / "hostile", PAYLOADS[1])
    runs.training(tmp_path / "all" / "run")
    file = tmp_path / "a.html"
    export([tmp_path / "all"], file, Wanted(worst=3))
    told: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        opened = browser.new_context(color_scheme=theme).new_page()
        opened.on("console", lambda message: told.append(message.text))
        opened.on("pageerror", lambda error: told.append(str(error)))
        opened.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
        opened.on("request", lambda request: told.append(request.url) if not request.url.startswith("data:") else None)
        opened.goto(file.as_uri())
        broken = opened.evaluate("[...document.images].filter((one) => !one.complete || !one.naturalWidth).length")
        ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        wide = opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.close()
    assert told == [file.as_uri()]
    assert broken == 0
    assert ground == {"light": "rgb(247, 247, 245)", "dark": "rgb(19, 20, 22)"}[theme]
    assert wide
