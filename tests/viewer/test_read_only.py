"""The viewer, its export and its notebook functions only read: no file of a run is opened for writing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs

LOOK = """
import json, os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.utime", "os.truncate",
           "os.link", "os.symlink", "os.setxattr", "os.removexattr", "shutil.rmtree", "shutil.move"}
seen = []


def hook(event, args):
    if event == "open" and args[2] & WRITES and isinstance(args[0], (str, bytes)):
        seen.append([event, os.fsdecode(args[0])])
    elif event in CHANGES:
        seen.append([event, *(os.fsdecode(one) for one in args if isinstance(one, (str, bytes)))])


from pathlib import Path

from tests.viewer.asgi import entered

from endoscope.runs import find_runs
from endoscope.viewer.app import SCREENS, create_app
from endoscope.report.notebook import display_debug_outputs
from endoscope.report.page import page_html
from endoscope.report.selection import Selection
from endoscope.viewer.library import Library
from endoscope.report.notebook import run_html

folder, may_write = Path(sys.argv[1]), sys.argv[2] == "twin"
sys.addaudithook(hook)
library = Library([folder])
client = entered(create_app(library, token="t"), "t")
answers = 0


def get(address, **query):
    global answers
    answer = client.get(address, **query)
    answers += answer.status == 200
    return answer


for screen in SCREENS:
    get(f"/{screen}")
for entry in library.entries():
    for name in ("runs", "stamp", "curves", "map", "worst", "captured", "storage"):
        get(f"/api/{name}", run=entry.id)
    reply = get("/api/datapoint", run=entry.id, dp=4).json
    for section in reply["sections"]:
        for item in section["items"]:
            get("/api/time", run=entry.id, dp=4, item=item["id"])
            if "src" in item["body"]:
                get(item["body"]["src"])
    for mode in ("success", "epochs", "runs"):
        get("/api/compare", run=entry.id, dp=4, mode=mode)
for run in find_runs(folder).runs:
    run_html(run)
    display_debug_outputs(run.epochs[-1].path, 4)
assert len(page_html([folder], Selection(epochs="all"))) > 10_000
found = {"answers": answers, "seen": [*seen]}
if may_write:  # the twin: a file that is opened for writing is seen
    open(folder / "training" / "run.json", "a").close()
    found["twin"] = seen[len(found["seen"]):]
print(json.dumps(found))
"""


def looked(folder: Path, which: str) -> Any:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", LOOK, str(folder), which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    runs.training(folder / "training")
    runs.evaluation(folder / "evaluation")
    return folder


def test_no_file_is_opened_for_writing_and_nothing_is_changed(folder: Path) -> None:
    before = runs.contents(folder)
    reply = looked(folder, "twin")
    assert reply["answers"] > 60
    assert reply["seen"] == []
    assert reply["twin"] == [["open", str(folder / "training" / "run.json")]]
    assert runs.contents(folder) == before


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs in which nobody may write."""
    runs.training(tmp_path / "runs" / "training")
    runs.evaluation(tmp_path / "runs" / "evaluation")
    there = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    for path in there:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield tmp_path / "runs"
    for path in there:
        path.chmod(0o755)


def test_a_folder_that_nobody_may_write_is_shown(locked: Path) -> None:
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere; the test above compares contents and times")
    reply = looked(locked, "alone")
    assert reply["answers"] > 60
    assert reply["seen"] == []
