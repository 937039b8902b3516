"""``endoscope view`` as a process: the printed address, a real request, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.viewer import runs

from endoscope.cli import main
from endoscope.errors import ConfigError
from endoscope.viewer.serve import Server, bind

KEPT_S = 30
"""How long the server keeps a connection on which nothing comes; an end that waited for it would take as long."""
PROGRAM = "from endoscope.cli import main; main()"


class Viewer:
    """``endoscope view`` with some arguments."""

    def __init__(self, *args: str | Path, before: str = "") -> None:
        command = [sys.executable, "-c", before + PROGRAM, "view", *map(str, args), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.line)
        self.address = found[0] if found else ""

    def end(self, sig: signal.Signals) -> tuple[int, float]:
        """The exit code, and how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(sig)
        return self.process.wait(20), time.monotonic() - began


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.training(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture
def viewer(folder: Path) -> Iterator[Viewer]:
    made = Viewer(folder)
    yield made
    made.process.kill()
    made.process.communicate()


def opened(address: str) -> tuple[str, bytes]:
    """Where a browser ends up, and what it gets."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(address, timeout=20) as answer:
        return answer.url, answer.read()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_one_line_with_an_address_that_answers_until_a_signal(viewer: Viewer, sig: signal.Signals) -> None:
    assert re.fullmatch(
        r"Endoscope shows the runs at http://127\.0\.0\.1:\d+/\?token=\S{43} \(Ctrl-C ends it\)\n", viewer.line
    )
    url, page = opened(viewer.address)
    assert "/map?run=a-" in url and "token" not in url
    assert b'data-screen="map"' in page
    with pytest.raises(HTTPError) as e:
        urllib.request.urlopen(viewer.address.partition("?")[0], timeout=20)
    assert e.value.code == 403
    e.value.close()
    at = urlsplit(viewer.address)
    assert at.hostname and at.port
    listening = Path("/proc/net/tcp").read_text()  # on the loopback address only
    assert f"0100007F:{at.port:04X} 00000000:0000 0A" in listening
    assert f"00000000:{at.port:04X} 00000000:0000 0A" not in listening
    idle = HTTPConnection(at.hostname, at.port, timeout=20)
    idle.request("GET", "/")
    idle.getresponse().read()  # and the connection stays open
    half = socket.create_connection((at.hostname, at.port))
    half.sendall(b"GET /runs HTTP/1.1\r\nHost: local")
    silent = socket.create_connection((at.hostname, at.port))
    code, seconds = viewer.end(sig)
    assert code == 0
    assert seconds < KEPT_S / 2
    assert viewer.process.stderr is not None and viewer.process.stderr.read() == ""
    for connection in (idle, half, silent):
        connection.close()


def test_an_end_while_requests_are_being_answered_is_quiet(folder: Path) -> None:
    slow = "import time\nfrom endoscope.viewer.runs_api import _Runs\n_Runs.runs = lambda *_: time.sleep(0.5)\n"
    viewer = Viewer(folder, before=slow)
    at = urlsplit(viewer.address)
    assert at.hostname and at.port
    first = HTTPConnection(at.hostname, at.port, timeout=20)
    first.request("GET", f"/?{at.query}")
    answer = first.getresponse()
    answer.read()
    cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
    asked = []
    for _ in range(3):
        connection = HTTPConnection(at.hostname, at.port, timeout=20)
        connection.request("GET", "/api/runs", headers={"Cookie": cookie})
        asked.append(connection)
    time.sleep(0.2)  # they are being answered now
    code, seconds = viewer.end(signal.SIGINT)
    out, errors = viewer.process.communicate()
    assert (code, out, errors) == (0, "", "")
    assert seconds < KEPT_S / 2
    for connection in (first, *asked):
        connection.close()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["view", str(tmp_path / "nowhere"), "--no-browser"])
    assert result.exit_code == 2
    assert "there is no folder" in result.output and "give a run's work_dir" in result.output


def test_a_port_in_use_is_reported(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen at '127.0.0.1', port {port}: .*; choose another with --port"
        ):
            bind("127.0.0.1", port)
    result = CliRunner().invoke(main, ["view"])
    assert result.exit_code == 2 and "WORK_DIR" in result.output


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "jinja2", "PIL"])
def test_what_is_not_installed_is_named_with_how_to_install_it(folder: Path, missing: str) -> None:
    code = f"import sys\nsys.modules[{missing!r}] = None\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", code, "view", str(folder), "--no-browser"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert f"the viewer needs '{missing}" in done.stderr
    assert "pip install 'endoscope[viewer]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_browser_is_opened_unless_disabled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", asked.append)

    def run(self: Server, ready: object) -> None:
        assert callable(ready)
        ready()
        self.close()

    monkeypatch.setattr(Server, "run", run)
    result = CliRunner().invoke(main, ["view", str(folder)], catch_exceptions=False)
    until = time.monotonic() + 10
    while not asked and time.monotonic() < until:
        time.sleep(0.01)
    assert asked == re.findall(r"http://\S+", result.output)
    CliRunner().invoke(main, ["view", str(folder), "--no-browser"], catch_exceptions=False)
    assert len(asked) == 1


def test_exposing_the_server_warns_and_keeps_the_token(folder: Path) -> None:
    exposed = Viewer(folder, "--host", "0.0.0.0")
    try:
        port = urlsplit(exposed.address).port
        assert exposed.address.startswith(f"http://127.0.0.1:{port}/?token=")
        assert b"data-screen" in opened(exposed.address)[1]
        with pytest.raises(HTTPError) as e:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/runs", timeout=20)
        assert e.value.code == 403
        e.value.close()
    finally:
        exposed.process.terminate()
        _, errors = exposed.process.communicate(timeout=20)
    assert "whoever has the address and its token can read these runs" in errors


def test_many_servers_leave_nothing_behind(folder: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with runs.serving(folder) as address:
        opened(address)
    before = descriptors()
    for _ in range(5):
        with runs.serving(folder) as address:
            opened(address)
    assert descriptors() <= before + 2
