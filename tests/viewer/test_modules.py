"""The files that a page asks for at once are those that it imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.viewer.asgi import entered

from endoscope.viewer.app import SCREENS, create_app, static_files
from endoscope.viewer.library import Library
from endoscope.viewer.modules import imported


def test_imports_of_imports(tmp_path: Path) -> None:
    texts = {
        "a.js": 'import { b } from "./b.js";\nimport "./inner/c.js";\nconst no = "./d.js";',
        "b.js": 'import {\n  a,\n} from "./a.js";',
        "inner/c.js": 'export { e } from "../e.js";\nimport { gone } from "./gone.js";',
        "d.js": "",
        "e.js": "",
    }
    files = {name: tmp_path / name.replace("/", "-") for name in texts}
    for name, path in files.items():
        path.write_text(texts[name])
    assert imported(files, "a.js") == ["a.js", "b.js", "inner/c.js", "e.js"]


@pytest.mark.parametrize("screen", SCREENS)
def test_a_page_names_all_that_its_screen_imports(screen: str, tmp_path: Path) -> None:
    client = entered(create_app(Library([tmp_path]), token="t"), "t")
    text = client.get(f"/{screen}").text
    named = re.findall(r'<link rel="modulepreload" href="/static/([^"]+)">', text)
    assert len(named) == len({*named})
    wanted = imported(static_files(), "main.js", f"screens/{screen}.js")
    assert sorted([*named, "main.js"]) == sorted(wanted)
    assert {"api.js", "dom.js", f"screens/{screen}.js"} <= {*named}
    for name in named:
        assert client.get(f"/static/{name}").status == 200
