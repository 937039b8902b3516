"""What the viewer's own files must not hold. Needs no browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

VIEWER = Path(__file__).parents[3] / "src" / "endoscope" / "viewer"
SCRIPTS = sorted((VIEWER / "static").rglob("*.js"))
FILES = [*SCRIPTS, *sorted((VIEWER / "static").rglob("*.css")), *sorted((VIEWER / "templates").rglob("*.html"))]
UNSAFE = re.compile(
    r"(?:inner|outer|insertAdjacent)HTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setTimeout\(\s*[\"']"
)
ELSEWHERE = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"


def test_there_are_files() -> None:
    assert {"main.js", "api.js", "items.js", "scoremap.js"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_unsafe_sink_and_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    assert UNSAFE.findall(text) == []
    assert ELSEWHERE.findall(text.replace(NAMESPACE, "")) == []


def test_shell_has_no_inline_script_or_handler() -> None:
    text = (VIEWER / "templates" / "shell.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"\son[a-z]+=|\sstyle=|<style", text) == []


def test_the_searches_can_fail() -> None:
    assert UNSAFE.search("box.innerHTML = name")
    assert ELSEWHERE.search("import 'https://cdn.example.com/x.js'")
