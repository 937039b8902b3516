"""The examples of docs/renderers.md work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.viewer import runs

from endoscope.render import About, View, unregister
from endoscope.render.registry import draw, picture
from endoscope.report.notebook import display_debug_outputs

PAGE = Path(__file__).parents[2] / "docs" / "renderers.md"
EXAMPLES = re.findall("```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def registered() -> Iterator[None]:
    for example in EXAMPLES[:2]:
        exec(example, {"__name__": "example"})
    yield
    unregister("spectrum")
    unregister("motion")


@pytest.mark.usefixtures("registered")
def test_the_line_example() -> None:
    signal = torch.sin(torch.arange(64) * 2 * torch.pi * 5 / 64)
    drawn = draw({"signal": signal[None]}, About(debugger="spectrum"))
    assert drawn.form == "line"
    power = drawn.body["series"][0]["values"]
    assert len(power) == 33
    assert max(range(33), key=power.__getitem__) == 5


@pytest.mark.usefixtures("registered")
def test_the_picture_example() -> None:
    flow = torch.zeros(1, 2, 4, 6)
    flow[0, 0, 1, 2] = 1.0
    about = About(debugger="motion")
    assert draw({"flow": flow}, about).body["width"] == 6
    pixels = picture({"flow": flow}, about, View()).pixels
    assert pixels.shape == (4, 6, 3)
    assert pixels[1, 2].tolist() == [255, 128, 128]
    assert pixels[0, 0].tolist() == [128, 128, 128]


@pytest.mark.usefixtures("registered")
def test_both_examples_in_a_notebook(tmp_path: Path) -> None:
    seen = {"spectrum": {"signal": torch.rand(2, 64)}, "motion": {"flow": torch.rand(2, 2, 4, 6)}}
    runs.write_pages(tmp_path / "captures", {(0, 1): seen})
    html = display_debug_outputs(tmp_path / "captures", 1)._repr_html_()
    assert html.count('class="line"') == html.count("<img") == 1
    assert "could not be drawn" not in html


def test_the_page_has_three_examples() -> None:
    assert len(EXAMPLES) == 3
    compile(EXAMPLES[2], "docs/renderers.md", "exec")


def test_the_notebook_example_of_the_page_on_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall("```python\n(.*?)```", (PAGE.parent / "viewer.md").read_text(encoding="utf-8"), re.DOTALL)
    runs.training(tmp_path / "runs" / "digits", epochs=5, indices=[*range(20)])
    monkeypatch.chdir(tmp_path)
    exec(example, {"__name__": "example"})
    assert [line.split("(")[0] for line in example.splitlines()[3:]] == [
        "display_debug_outputs",
        "load_debug_outputs",
        "run_html",
    ]
