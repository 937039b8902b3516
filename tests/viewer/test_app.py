"""The application as a whole: pages, files, errors; that it only reads, and reads only what it may."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.viewer import runs
from tests.viewer.asgi import Answer, Client, entered
from tests.viewer.test_security import addresses

from endoscope.errors import DamagedRecordError, DatapointNotFoundError
from endoscope.viewer.app import SCREENS, create_app, static_files
from endoscope.viewer.library import Library

TOKEN = "the-token"
SECRET = "SECRET-OUTSIDE-ALL-RUNS"
WATCHED = {"socket.connect", "socket.getaddrinfo", "pickle.find_class", "import", "open"}
KINDS = ("training", "evaluation", "live", "crashed", "killed", "just_started", "damaged")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("secret-place")
    (top / "secret.txt").write_text(SECRET)
    (top / "secret.json").write_text(f'"{SECRET}"')
    for kind in KINDS:
        getattr(runs, kind)(top / "runs" / kind)
    return top / "runs"


@pytest.fixture(scope="module")
def app(folder: Path) -> Starlette:
    return create_app(Library([folder]), token=TOKEN)


@pytest.fixture
def client(app: Starlette) -> Client:
    return entered(app, TOKEN)


def ids(client: Client) -> dict[str, str]:
    return {run["name"]: run["id"] for run in client.get("/api/runs").json["runs"]}


# ---------------------------------------------------------------- pages and files
@pytest.mark.parametrize(("screen", "title"), SCREENS.items())
def test_a_screen_is_a_page_that_names_itself(client: Client, screen: str, title: str) -> None:
    answer = client.get(f"/{screen}")
    assert answer.status == 200
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert screen in answer.text and title in answer.text
    assert "onload=" not in answer.text and "<script>" not in answer.text  # the policy would stop them


def test_the_first_page_is_the_map_of_the_only_run(tmp_path: Path) -> None:
    runs.training(tmp_path / "a")
    client = entered(create_app(Library([tmp_path]), token=TOKEN), TOKEN)
    only = ids(client)["a"]
    assert client.get("/").header("location") == f"/map?run={only}"
    runs.training(tmp_path / "b")
    later = entered(create_app(Library([tmp_path]), token=TOKEN), TOKEN)
    assert later.get("/").header("location") == "/runs"


@pytest.mark.parametrize("kind", ["empty", "just_started"])
def test_a_run_without_scores_opens_the_page_of_runs(tmp_path: Path, kind: str) -> None:
    getattr(runs, kind)(tmp_path / "a")
    client = entered(create_app(Library([tmp_path]), token=TOKEN), TOKEN)
    assert client.get("/").header("location") == "/runs"


def test_our_files_are_served_with_their_type_and_not_sent_twice(client: Client) -> None:
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    for name, path in static_files().items():
        answer = client.get(f"/static/{name}")
        assert answer.status == 200 and answer.body == path.read_bytes()
        assert answer.header("content-type") == kinds[path.suffix], name
        again = client.get(f"/static/{name}", headers=[("if-none-match", answer.header("etag") or "")])
        assert (again.status, again.body) == (304, b"")


def test_browsers_may_store_the_icon_but_not_the_scripts(client: Client) -> None:
    """Browsers ask for the icon again at every step in the history, unless they may keep it."""
    assert client.get("/static/icon.svg").header("cache-control") == "private, max-age=86400"
    assert client.get("/static/main.js").header("cache-control") == "private, no-cache"


# ---------------------------------------------------------------- errors
@pytest.fixture
def broken(folder: Path) -> Starlette:
    """With routes that fail."""

    def fails(request: Request) -> Response:
        raise RuntimeError(f"in {folder}/training/epoch_1")

    def damaged(request: Request) -> Response:
        raise DamagedRecordError(f"{folder / 'training' / 'page_0.safetensors'}, record 3: wrong checksum")

    def missing(request: Request) -> Response:
        raise DatapointNotFoundError(f"no datapoint 5 in {str(folder)!r}")

    app = create_app(Library([folder]), token=TOKEN)
    app.router.routes += [Route(path, end) for end in (fails, damaged, missing) for path in _both(end.__name__)]
    return app


def _both(name: str) -> list[str]:
    return [f"/{name}", f"/api/{name}"]


@pytest.mark.parametrize("path", _both("fails"))
def test_a_bug_is_logged_and_shown_without_details(broken: Starlette, path: str) -> None:
    answer = entered(broken, TOKEN).get(path)
    assert answer.status == 500
    assert isinstance(answer.error, RuntimeError)  # which the server logs
    assert "went wrong" in answer.text
    assert "secret-place" not in answer.text and "RuntimeError" not in answer.text and "Traceback" not in answer.text
    assert "default-src 'none'" in (answer.header("content-security-policy") or "")
    assert answer.header("x-content-type-options") == "nosniff"


def test_errors_of_a_run_say_what_is_wrong_without_where_it_lies(broken: Starlette) -> None:
    client = entered(broken, TOKEN)
    found = client.get("/api/damaged")
    assert found.status == 422
    assert found.json == {"error": {"message": "training/page_0.safetensors, record 3: wrong checksum", "hint": ""}}
    assert client.get("/api/missing").status == 404
    assert "secret-place" not in client.get("/api/missing").text


def test_an_address_that_is_not_there_says_so(client: Client) -> None:
    assert client.get("/nothing").status == client.get("/static/nothing.js").status == 404
    assert client.get("/api/nothing").json["error"]["message"] == "there is nothing at this address"


BAD = {
    "run": ["nobody", "", "../training", "0"],
    "epoch": ["x", "-1", "1.5", "1e3", "٣", "99", "1" * 400, "0x1", "01"],
    "dp": ["x", "1.5", "٣", "9" * 30, "--1", "NaN"],
    "metric": ["nobody", "__class__", "x" * 10000],
    "order": ["x", "INDEX", "__len__"],
    "percentile": ["x", "-1", "101", "NaN", "1e400", "inf", "1/0", "٣", ".", "1_0"],
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_with_a_sentence(client: Client, name: str) -> None:
    training = ids(client)["training"]
    for value in BAD[name]:
        query = {"run": training, "dp": 0, name: value}
        if value:
            answer = client.get("/api/map", **query)
            assert answer.status in (400, 404), value
            assert set(answer.json["error"]) == {"message", "hint"}
            assert len(answer.body) < 1000


# ---------------------------------------------------------------- paths
def payloads() -> Iterator[str]:
    """Ways out of a folder, in many spellings."""
    ups = [
        "../",
        "..;/",
        "..;/",
        "..\\",
        "....//",
        "%2e%2e/",
        "..%2f",
        "%252e%252e%252f",
        "..%c0%af",
        "..%ef%bc%8f",
        "/../",
        "./../",
    ]
    targets = ["secret.txt", "secret.json", "etc/passwd", "app.py", "run.json", "checkpoint.pt"]
    for up, depth, target in product(ups, (1, 2, 4, 8), targets):
        yield up * depth + target
    for target in (
        "/etc/passwd",
        "//etc/passwd",
        "\\etc\\passwd",
        "file:///etc/passwd",
        "C:\\secret.txt",
        "~/secret.txt",
    ):
        yield from (target, f"training{target}", f"{target}\0.js", f"{target}%00.css", f"epoch_0/{target}")
    yield from (
        "..",
        ".",
        "...",
        "",
        "/",
        "\0",
        "%00",
        "CON",
        "style.css/..",
        "style.css/",
        "style.css\0",
        "screens/..",
    )
    yield from ("a" * 5000, "../" * 2000, "{name}", "${HOME}", "$(id)", "`id`", "|id", ";id", "'; --", "\r\nX: y")


PAYLOADS = [*payloads()]


def test_there_are_300_payloads() -> None:
    assert len({*PAYLOADS}) >= 300


def test_no_path_leads_out_of_our_own_files(client: Client, folder: Path) -> None:
    ours = {path.read_bytes() for path in static_files().values()}
    for payload in PAYLOADS:
        for address in (f"/static/{payload}", f"/static/screens/{payload}", f"/{payload}", f"/static/{quote(payload)}"):
            raw = address.encode("utf-8", "replace")
            answer = client.raw("GET", raw, b"", [("host", "localhost"), ("cookie", _cookie(client))])
            assert answer.status in (200, 303, 404), address
            assert SECRET.encode() not in answer.body and b"root:" not in answer.body
            assert answer.status != 200 or answer.body in ours or b"data-screen" in answer.body, address


def _cookie(client: Client) -> str:
    return "; ".join(f"{key}={value}" for key, value in client.cookies.items())


def test_no_parameter_is_taken_as_a_path(app: Starlette, client: Client, folder: Path) -> None:
    apis = [path for path in addresses(app) if path.startswith("/api/")]
    known = ids(client)["training"]
    names = ("run", "epoch", "metric", "dp", "item", "other", "order", "percentile", "mode", "page", "zoom", "n")
    for k, payload in enumerate(PAYLOADS):
        for path in (apis[k % len(apis)], apis[(k // len(apis)) % len(apis)]):
            name = names[k % len(names)]  # each name and each address with many payloads
            others = {"run": known, "dp": 0, "epoch": 1}
            answer = client.get(path, **{**others, name: payload})
            assert answer.status in (200, 304, 400, 404, 422), (path, name, payload)
            assert answer.error is None
            assert SECRET.encode() not in answer.body
            assert b"secret-place" not in without_snippets(answer), (path, name, payload)


def test_a_run_is_found_by_its_id_alone(client: Client, folder: Path) -> None:
    for payload in (*PAYLOADS, "training", str(folder / "training"), str(folder), "runs"):
        if payload:
            assert client.get("/api/storage", run=payload).status == 404


# ---------------------------------------------------------------- it only reads
def every_answer(app: Starlette, client: Client) -> Iterator[Answer]:
    """Every address, for every run, with and without an epoch and a datapoint."""
    known = ids(client)
    for path in addresses(app):
        yield client.get(path)
        if not path.startswith("/api/"):
            continue  # a page or a file, which is the same for every run
        for run in known.values():
            yield client.get(path, run=run)
            yield client.get(path, run=run, dp=0)
            yield client.get(path, run=run, dp=5, epoch=1, metric="loss", order="change")
        yield client.get(path, run=[known["training"], known["evaluation"]], dp=0, order="disagreement")


def without_snippets(answer: Answer) -> bytes:
    """The body without the Python text that loads a value, which has to name its folder."""
    return re.sub(rb'"snippet":"(\\.|[^"\\])*"', b"", answer.body)


def test_nothing_in_a_run_is_changed_by_looking_at_it(app: Starlette, client: Client, folder: Path) -> None:
    before = runs.contents(folder.parent)
    statuses = [answer.status for answer in every_answer(app, client)]
    assert statuses.count(200) > len(statuses) / 2
    assert 500 not in statuses
    assert runs.contents(folder.parent) == before


def test_twin_a_change_is_noticed(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a", epochs=1)
    before = runs.contents(folder)
    (folder / "run.json").touch()
    assert runs.contents(folder) != before


def test_no_answer_shows_where_the_runs_lie(app: Starlette, client: Client, folder: Path) -> None:
    for answer in every_answer(app, client):
        assert b"secret-place" not in without_snippets(answer)


def test_nothing_is_opened_but_files_of_runs_and_our_own(app: Starlette, client: Client, folder: Path) -> None:
    """No outgoing connection, no pickle, no import of a run's code, no writing: as Python itself reports them."""
    seen: list[tuple[str, Any]] = []
    watching = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching and event in (
            "socket.connect",
            "socket.getaddrinfo",
            "pickle.find_class",
            "import",
            "exec",
            "open",
        ):
            seen.append((event, args[0] if event in ("import", "pickle.find_class") else args))

    for answer in every_answer(app, client):  # what is imported when first asked for
        assert answer.error is None
    sys.addaudithook(hook)
    for answer in every_answer(app, client):
        assert answer.error is None
    watching = False
    events = {event for event, _ in seen}
    assert "open" in events  # it was watching
    assert not events & {"socket.getaddrinfo", "pickle.find_class"}
    assert [args for event, args in seen if event == "socket.connect"] == []
    imported = {what for event, what in seen if event == "import"}
    assert not [name for name in imported if str(name).startswith("user_code")]
    written = [args for event, args in seen if event == "open" and _writes(args)]
    assert written == []


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = args
    del path
    return bool(mode and set(mode) & set("wax+")) or bool(isinstance(flags, int) and flags & 3)
