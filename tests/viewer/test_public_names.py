"""What `endoscope.viewer` offers by name, and that a notebook needs no web server for it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.viewer import runs

import endoscope
from endoscope import viewer

WITHOUT_A_SERVER = """
import sys
for name in ("starlette", "uvicorn", "jinja2"):
    sys.modules[name] = None
from endoscope.viewer import About, Picture, Renderer, View, display_debug_outputs, load_debug_outputs, register
shown = display_debug_outputs(sys.argv[1], 4)
assert 4 in load_debug_outputs(sys.argv[1])
print(len(shown._repr_html_()))
"""


def test_every_public_name_is_the_object_of_its_module() -> None:
    for name in viewer.__all__:
        found = getattr(viewer, name)
        assert getattr(importlib.import_module(found.__module__), name) is found
        assert name in dir(viewer)
    assert viewer.load_debug_outputs is endoscope.load_debug_outputs
    with pytest.raises(AttributeError, match="has no attribute 'Rendrer'"):
        _ = viewer.Rendrer


def test_a_notebook_needs_no_server(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "run") / "epoch_1"
    command = [sys.executable, "-c", WITHOUT_A_SERVER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
