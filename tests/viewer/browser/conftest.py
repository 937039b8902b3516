"""A real Chromium on the real server. Every page is watched: an error in its console, or a request that leaves the
host, fails the test that opened it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.viewer import runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


class Viewer:
    """A browser window on one server, and what went wrong in it."""

    def __init__(self, context: Any, address: str) -> None:
        self.address = address
        self.base = address.split("/?")[0]
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(8000)
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        self.page.on("request", self._asked)
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        context.request.get(address)  # hands over the token, and keeps the cookie

    def _told(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc and not request.url.startswith("data:"):
            self.foreign.append(request.url)

    def visit(self, screen: str) -> Any:
        """Follow the navigation, without loading the page again."""
        before = self.page.locator("main").get_attribute("data-ready")
        self.page.locator(f'nav a[href^="/{screen}"]').click()
        self.page.wait_for_selector(f'main[data-ready]:not([data-ready="{before}"])')
        return self.page

    def open(self, path: str) -> Any:
        """Go to an address of the viewer and wait until its screen is drawn."""
        self.page.goto(self.base + path)
        self.page.wait_for_selector("main[data-ready]")
        return self.page


Opener = Callable[..., Viewer]
Serve = Callable[[Path], str]


@pytest.fixture
def served() -> Iterator[Callable[[Path], str]]:
    """served(folder): the address of a server on a thread, which ends after the windows are closed."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(runs.serving(folder))


@pytest.fixture
def viewer(browser: Any, served: Any) -> Iterator[Opener]:
    """viewer(address, theme="light", width=1280): a window of its own, checked at the end of the test."""
    made: list[tuple[Viewer, Any]] = []

    def make(address: str, *, theme: str = "light", width: int = 1280, height: int = 800) -> Viewer:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        made.append((Viewer(context, address), context))
        return made[-1][0]

    yield make
    for opened, context in made:
        context.close()
        assert opened.errors == []
        assert opened.foreign == []


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings, the second one other than the first, and an evaluation."""
    root = tmp_path_factory.mktemp("runs")
    runs.training(root / "first")
    runs.training(root / "second", indices=runs.INDICES[:10])
    runs.evaluation(root / "third")
    return root


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    """A server of `folder`; test_serve.py starts it as a process."""
    with runs.serving(folder) as opened:
        yield opened


@pytest.fixture
def first(viewer: Opener, address: str) -> Viewer:
    """A window on the server of `folder`."""
    return viewer(address)


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait; imported late, so that tests are collected and skipped without it."""
    from playwright.sync_api import expect as waiting

    return waiting(locator)


def run_id(opened: Viewer, name: str) -> str:
    """The id of a run by its name, as the JSON gives it."""
    listed = opened.page.request.get(f"{opened.base}/api/runs").json()["runs"]
    return next(run["id"] for run in listed if run["name"] == name)
