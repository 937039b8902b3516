"""``endoscope view --export``: one page from a run's files, which agrees with them, runs nothing and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from tests.report.parsed import Parsed, several
from tests.viewer import runs
from tests.viewer.payloads import PAYLOADS

from endoscope.cli import main
from endoscope.errors import ConfigError
from endoscope.report import page as module
from endoscope.report.page import export, page_html
from endoscope.report.selection import Selection
from endoscope.runs import Run


def page(*folders: Path, **selection: Any) -> Parsed:
    return Parsed(page_html(folders, Selection(**selection)))


def view(*args: object) -> Result:
    return CliRunner().invoke(main, ["view", *map(str, args)], catch_exceptions=False)


def sections(content: str) -> list[str]:
    return re.findall(r'<section id="run0-dp(-?\d+)">', content)


# ---------------------------------------------------------------- content
def test_numbers_are_those_of_the_files(trained: Path) -> None:
    run = Run(trained)
    table = run.epochs[-1].scores
    assert table is not None
    found = page(run.path, metric="loss")
    for name, value in table.aggregated.items():
        assert f"{name} {value:.4g} {table.directions[name]}" in found.text
    worst = table.indices[table.worst_first("loss")].tolist()
    assert sections(page_html([run.path], Selection(metric="loss"))) == [str(idx) for idx in worst]  # all twelve
    for idx in worst:
        value = float(table.values["loss"][table.indices.tolist().index(idx)])
        assert re.search(rf"Datapoint {idx} of run, epoch 2 .*? loss {re.escape(f'{value:.4g}')} ", found.text)
    losses = [epoch.losses["loss"].mean() for epoch in run.epochs]
    assert f"training loss {min(losses):.4g} to {max(losses):.4g} epoch 0 to 2; last {losses[-1]:.4g}" in found.text
    assert "datapoints 12 · fail 1 (of the worst 5 %, and every NaN)" in found.text


def test_statistics_of_a_captured_tensor(trained: Path) -> None:
    run = Run(trained)
    debugger = run.epochs[-1].debugger
    assert debugger is not None
    value = debugger[4]["encoder"]["output"]
    shape = "×".join(map(str, value.shape))
    parts = {"min": value.min(), "mean": value.mean(), "max": value.max(), "std": value.std()}
    numbers = ", ".join(f"{name} {part:.4g}" for name, part in parts.items()).replace("-", "−")
    assert "min −" in numbers
    said = f"{shape} · float32 · {numbers} of all values · 0 NaN, 0 infinite"
    assert said in page(run.path, datapoints=(4,)).text


def test_every_section_and_debugger_is_there(trained: Path) -> None:
    found = page(trained, datapoints=(5,))
    for name in ("Inputs", "Labels", "Meta info", "Outputs", "Debug outputs", *runs.seen_of([0])):
        assert name in found.text
    assert "images/5.png" in found.text
    assert len(found.all("img")) >= 6  # map, input, features, video, attention, gradcam
    assert found.unsafe() == []


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
    content = page_html([masked], Selection(datapoints=(1,)))
    pictures = {attrs["alt"]: attrs for attrs in Parsed(content).all("img")}
    for name in ("mask", "gradcam"):
        alone, over = (pictures[f"{name}, 1×8×8, {caption}"] for caption in ("alone", "over the input"))
        assert alone["src"] != over["src"]
        assert (alone["width"], alone["height"]) == (over["width"], over["height"]) == ("256", "256")
    captions = re.findall(r"<figcaption>(alone|over the input)</figcaption>", content)
    assert captions == ["alone", "over the input"] * 2
    assert pictures["inputs, 1×3×8×8"]["width"] == "256"  # one picture has no caption


def test_classes_of_a_mask_have_their_colours(masked: Path) -> None:
    content = page_html([masked], Selection(datapoints=(1,)))
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


def test_scores_have_their_own_heading(trained: Path) -> None:
    found = page(trained, datapoints=(5,))
    assert re.search(r"Meta info .* Scores label ship · predicted .* loss .* Outputs", found.text)


def test_infinite_outputs_are_numbers(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run", epochs=1)
    outputs = torch.tensor([[float("-inf"), 1.0, 2.0]] * 2)
    runs.write_pages(folder / "epoch_0" / "outputs", {(0, 1): {"outputs": outputs}})
    found = page(folder, datapoints=(1,)).text
    assert "0 cat −∞ –" in found
    assert "Infinity" not in found


def test_chosen_datapoints_and_epochs(trained: Path) -> None:
    content = page_html([trained], Selection(datapoints=(7, 2), epochs=(1, 2)))
    assert sections(content) == ["7", "2"]
    assert content.count("<h2>Epoch 1</h2>") == content.count("<h2>Epoch 2</h2>") == 2
    assert "<h2>Epoch 0</h2>" not in content
    assert page_html([trained], Selection(worst=1, epochs="all")).count("<h2>Epoch ") == 3
    assert sections(page_html([trained], Selection(worst=0))) == []


def test_nan_is_the_worst(trained: Path) -> None:
    content = page_html([trained], Selection(metric="loss", worst=1, epochs=(1,)))
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
    assert "Datapoint 3 has no stored outputs" in found.text


# ---------------------------------------------------------------- bounds
def test_large_pictures_are_shrunk_with_a_note(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "shrunk" not in page(trained, datapoints=(1,)).text
    monkeypatch.setattr("endoscope.report.html._MOST_PICTURE", 300)
    assert re.search(r"shrunk: every (2nd|4th|8th) pixel", page(trained, datapoints=(1,)).text)


def test_full_page_leaves_out_with_a_note(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = page_html([trained], Selection(metric="loss"))
    assert "left out" not in whole
    monkeypatch.setattr(module, "MOST_BYTES", len(whole) // 3)
    short = page_html([trained], Selection(metric="loss"))
    assert len(short) < len(whole) / 2
    assert re.search(r"\d+ datapoints are left out: a page holds about", short)


def test_stated_size(trained: Path, tmp_path: Path) -> None:
    size = export([trained], tmp_path / "a.html", Selection())
    stated = re.search(r"size about <b>([0-9.]+) MB", (tmp_path / "a.html").read_text())
    assert stated is not None
    assert size == (tmp_path / "a.html").stat().st_size
    assert abs(float(stated[1]) - size / 1e6) < 0.02


# ---------------------------------------------------------------- safety
@pytest.mark.parametrize("payloads", several(PAYLOADS))
def test_text_of_a_run_is_escaped(tmp_path: Path, payloads: str) -> None:
    found = page(runs.hostile(tmp_path / "run", payloads))
    assert found.unsafe() == []
    assert payloads in " ".join(found.texts)  # shown as it is written


def test_policy_allows_only_its_style_and_pictures(trained: Path) -> None:
    content = page_html([trained], Selection())
    policies = [attrs["content"] for attrs in Parsed(content).all("meta") if "http-equiv" in attrs]
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    mark = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policies == [
        f"default-src 'none'; img-src data:; style-src 'sha256-{mark}'; base-uri 'none'; form-action 'none'"
    ]


def test_no_path_of_this_machine_is_named(tmp_path: Path) -> None:
    for make in (runs.training, runs.damaged, runs.crashed):
        assert str(tmp_path) not in page_html([make(tmp_path / make.__name__)], Selection(epochs="all"))


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


def test_an_empty_folder_beside_a_run_is_reported(trained: Path, tmp_path: Path) -> None:
    found = page(trained, runs.empty(tmp_path / "nothing"))
    assert "there is no run in 'nothing'" in found.text


def test_the_run_is_left_as_it_was(trained: Path, tmp_path: Path) -> None:
    before = runs.contents(trained)
    export([trained], tmp_path / "a.html", Selection(epochs="all"))
    assert runs.contents(trained) == before


# ---------------------------------------------------------------- the command
def test_command_writes_and_refuses_to_overwrite(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    done = view(trained, "--export", file, "--worst", 2, "--metric", "loss")
    assert done.exit_code == 0
    assert re.fullmatch(rf"wrote {re.escape(str(file))} \([0-9.]+ MB\); it opens .*\n", done.stdout)
    assert len(sections(file.read_text())) == 2
    before = file.read_bytes()
    again = view(trained, "--export", file)
    assert again.exit_code == 2
    assert "already exists; choose another name, or replace it with --overwrite" in again.stderr
    assert file.read_bytes() == before
    assert view(trained, "--export", file, "--overwrite").exit_code == 0
    assert len(sections(file.read_text())) == 12
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_options_of_the_export_need_it(trained: Path) -> None:
    done = view(trained, "--worst", 3)
    assert done.exit_code == 2
    assert "--worst belongs to --export FILE.html" in done.stderr


def test_places_that_cannot_be_written(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        export([trained], tmp_path, Selection())
    with pytest.raises(ConfigError, match="create it first"):
        export([trained], tmp_path / "no" / "a.html", Selection())


# ---------------------------------------------------------------- in a browser
def test_opens_from_disk_in_chromium(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    runs.hostile(tmp_path / "all" / "hostile", '"><img src=x onerror=alert(1)>')
    runs.training(tmp_path / "all" / "run")
    file = tmp_path / "a.html"
    export([tmp_path / "all"], file, Selection(worst=3))
    messages: list[str] = []

    def requested(request: Any) -> None:
        if not request.url.startswith("data:"):
            messages.append(request.url)

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        opened = browser.new_page()
        opened.on("console", lambda message: messages.append(message.text))
        opened.on("pageerror", lambda error: messages.append(str(error)))
        opened.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
        opened.on("request", requested)
        opened.goto(file.as_uri())
        broken = opened.evaluate("[...document.images].filter((one) => !one.complete || !one.naturalWidth).length")
        fits = opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        grounds = {}
        for theme in ("light", "dark"):
            opened.emulate_media(color_scheme=theme)
            grounds[theme] = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert messages == [file.as_uri()]
    assert broken == 0
    assert fits
    assert grounds == {"light": "rgb(247, 247, 245)", "dark": "rgb(19, 20, 22)"}
