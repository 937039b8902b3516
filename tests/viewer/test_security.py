"""Who may ask, and what a browser may do with the answer."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.viewer import runs
from tests.viewer.asgi import Answer, Client, entered, run

from endoscope.viewer import security
from endoscope.viewer.app import create_app, static_files
from endoscope.viewer.library import Library
from endoscope.viewer.security import Guard, Hosts, cookie_name, is_loopback, new_token

TOKEN = "the-token"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret-place")
    runs.training(folder / "training")
    runs.evaluation(folder / "evaluation")
    return folder


@pytest.fixture(scope="module")
def app(folder: Path) -> Starlette:
    return create_app(Library([folder]), token=TOKEN)


@pytest.fixture
def client(app: Starlette) -> Client:
    return entered(app, TOKEN)


def addresses(app: Starlette) -> list[str]:
    """Every address of the application, static files one by one."""
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    assert len(paths) == len(app.routes)
    return [path for path in paths if "{" not in path] + [f"/static/{name}" for name in static_files()]


# ---------------------------------------------------------------- the token
def test_every_address_is_refused_without_the_token(app: Starlette) -> None:
    found = addresses(app)
    assert {"/", "/runs", "/map", "/api/runs", "/api/stamp", "/api/curves", "/api/map", "/api/storage"} <= {*found}
    for path in found:
        for method in ("GET", "HEAD"):
            answer = Client(app).ask(method, path)
            assert answer.status == 403, path
            assert answer.header("set-cookie") is None


def test_twin_every_address_is_allowed_with_the_token(app: Starlette, client: Client) -> None:
    for path in addresses(app):
        assert client.get(path).status not in (403, 405, 500), path


def test_an_unknown_address_is_refused_too(app: Starlette) -> None:
    assert Client(app).get("/nothing").status == 403
    assert Client(app).get("/static/nothing").status == 403


@pytest.mark.parametrize(
    "given", ["", "x", TOKEN + "x", TOKEN[:-1], TOKEN.upper(), "ü", "%00", TOKEN + "%00", "%ff%fe"]
)
def test_another_token_is_refused(app: Starlette, given: str) -> None:
    client = Client(app)
    assert client.ask("GET", f"/runs?token={given}").status == 403
    assert client.cookies == {}
    sent = [("cookie", f"{cookie_name(TOKEN)}={given}")]
    assert client.ask("GET", "/runs", headers=sent).status == 403


def test_a_wrong_token_is_refused_also_with_the_cookie(client: Client) -> None:
    assert client.get("/runs", token="x").status == 403
    assert client.get("/runs").status == 200


def test_the_token_sets_a_strict_cookie_and_leads_to_the_address_without_it(app: Starlette) -> None:
    client = Client(app)
    answer = client.ask("GET", f"/map?run=a&token={TOKEN}&metric=b%26c&run=d%2Fe")
    assert answer.status == 303
    assert answer.header("location") == "/map?run=a&metric=b%26c&run=d%2Fe"
    assert answer.header("cache-control") == "private, no-store"
    cookie = (answer.header("set-cookie") or "").split("; ")
    assert cookie[0] == f"{cookie_name(TOKEN)}={TOKEN}"
    assert {part.lower() for part in cookie[1:]} == {"httponly", "samesite=strict", "path=/"}
    assert client.get("/runs").status == 200


@pytest.mark.parametrize("path", ["//evil.example/x", "///evil.example", "/\\evil.example", "/%2F/evil.example"])
def test_the_redirect_never_leads_to_another_server(app: Starlette, path: str) -> None:
    query = f"token={TOKEN}".encode()
    answer = Client(app).raw("GET", path.encode(), query, [("host", "localhost")])
    location = answer.header("location") or ""
    assert answer.status == 303
    assert location.startswith("/") and not location.startswith(("//", "/\\", "/%5C", "/%5c"))


def test_the_redirect_cannot_be_split(app: Starlette) -> None:
    answer = Client(app).ask("GET", f"/runs%0d%0aSet-Cookie:x=y?token={TOKEN}&a=%0d%0ab")
    assert answer.status == 303
    assert "\r" not in (answer.header("location") or "") and "\n" not in (answer.header("location") or "")


def test_the_token_is_compared_in_constant_time(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(security, "hmac", Watched)
    Client(app).get("/runs", token="x")
    Client(app).ask("GET", "/runs", headers=[("cookie", f"{cookie_name(TOKEN)}=y")])
    assert compared == [(b"x", TOKEN.encode()), (b"y", TOKEN.encode())]


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


def test_two_servers_of_one_machine_do_not_share_a_cookie(app: Starlette, folder: Path, client: Client) -> None:
    other = create_app(Library([folder]), token="another")
    both = Client(other, cookies=client.cookies)
    assert both.get("/runs").status == 403
    assert both.get("/runs", token="another").status == 303
    assert both.get("/runs").status == 200
    assert Client(app, cookies=both.cookies).get("/runs").status == 200


def test_the_token_is_in_no_answer_but_the_cookie(app: Starlette, client: Client) -> None:
    for path in addresses(app):
        if not path.startswith("/static/"):
            answer = client.get(path)
            assert TOKEN not in answer.text
            assert TOKEN not in repr(answer.headers)


# ---------------------------------------------------------------- Host
ALLOWED = [
    "localhost",
    "127.0.0.1",
    "[::1]",
    "localhost:8000",
    "127.0.0.1:1",
    "[::1]:65535",
    "LOCALHOST",
    "LocalHost:80",
]
REFUSED = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evil.example.localhost",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io",
    "localhost.",
    "localhost.:8000",
    "",
    " ",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:http",
    "localhost:80:80",
    "user@localhost",
    "localhost@evil.example",
    "localhost/x",
    "localhost evil.example",
    "localhost,evil.example",
    "127.0.0.2",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0.0.0.0",
    "192.168.1.7",
    "::1",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::1",
    "::1]:8000",
    "[localhost]",
    "[127.0.0.1]",
    "*",
    "null",
    "ｌocalhost".encode().decode("latin-1"),
]


@pytest.mark.parametrize("host", ALLOWED)
def test_our_own_names_are_answered(client: Client, host: str) -> None:
    assert client.ask("GET", "/api/runs", host=host).status == 200


@pytest.mark.parametrize("host", REFUSED)
def test_a_foreign_host_is_refused_before_anything_else(app: Starlette, client: Client, host: str) -> None:
    for path in ("/api/runs", "/runs", "/static/style.css", f"/runs?token={TOKEN}"):
        answer = client.ask("GET", path, host=host)
        assert answer.status == 400, path
        assert answer.header("set-cookie") is None
        assert not host.strip() or host not in answer.text or host in ("*", "null")


@pytest.mark.parametrize(
    "hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"], ["evil.example", "localhost"]]
)
def test_no_host_or_two_are_refused(client: Client, hosts: list[str]) -> None:
    assert client.ask("GET", "/runs", host=hosts).status == 400


def test_a_forwarded_host_counts_for_nothing(client: Client) -> None:
    forwarded = [("x-forwarded-host", "localhost"), ("forwarded", "host=localhost")]
    assert client.ask("GET", "/runs", host="evil.example", headers=forwarded).status == 400
    assert client.ask("GET", "/runs", headers=[("x-forwarded-host", "evil.example")]).status == 200


def test_an_exposed_server_accepts_addresses_and_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security.socket, "gethostname", lambda: "Workstation")
    hosts = Hosts.of("0.0.0.0")
    for name in ("192.168.1.7:8000", "[2001:db8::1]", "localhost", "workstation:8000"):
        assert hosts.allows(name), name
    for name in (
        "evil.example",
        "workstation.evil.example",
        "192.168.1.7.nip.io",
        "999.1.1.1",
        "[192.168.1.7]",
        "127.1",
    ):
        assert not hosts.allows(name), name
    assert Hosts.of("my.machine").allows("my.machine:1")
    assert not Hosts.of("127.0.0.1").allows("192.168.1.7")


def test_which_addresses_are_loopback() -> None:
    assert [*map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"))] == [True] * 5
    assert [*map(is_loopback, ("0.0.0.0", "::", "192.168.1.7", "my.machine", ""))] == [False] * 5


# ---------------------------------------------------------------- methods
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "FOO"])
def test_only_reading_is_allowed(app: Starlette, client: Client, method: str) -> None:
    for path in [*addresses(app), "/nothing"]:
        answer = client.ask(method, path)
        assert answer.status == 405, path
        assert answer.header("allow") == "GET, HEAD"


def test_head_is_answered_without_a_body_of_files(client: Client) -> None:
    assert client.ask("HEAD", "/static/style.css").body == b""
    assert client.ask("HEAD", "/api/runs").status == 200


# ---------------------------------------------------------------- headers
def every_kind(app: Starlette, client: Client) -> list[Answer]:
    """Answers of every kind: pages, JSON, files, redirects and errors."""
    return [
        *map(client.get, addresses(app)),
        client.get("/nothing"),
        client.get("/api/map", epoch="x"),
        client.ask("POST", "/runs"),
        client.ask("GET", "/runs", host="evil.example"),
        Client(app).get("/runs"),
        Client(app).get("/runs", token=TOKEN),
    ]


def test_every_answer_has_the_headers(app: Starlette, client: Client) -> None:
    for answer in every_kind(app, client):
        policy = answer.header("content-security-policy") or ""
        rules = dict(rule.partition(" ")[::2] for rule in policy.split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == "'self'"
        assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert "unsafe" not in policy and "http:" not in policy and "*" not in policy
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("referrer-policy") == "no-referrer"
        assert (answer.header("cache-control") or "").startswith("private")


def test_no_answer_lets_another_origin_read(app: Starlette, client: Client) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:8000"):
        for path in addresses(app):
            answer = client.ask("GET", path, headers=[("origin", origin)])
            assert not [name for name, _ in answer.headers if name.startswith("access-control")]


def test_the_page_of_a_refusal_keeps_to_the_policy(app: Starlette) -> None:
    """Its own style is allowed by what it holds; there is no script, and what was asked for is not repeated."""
    answer = Client(app).get("/<script>alert(1)</script>")
    assert answer.status == 403
    assert "script" not in answer.text
    style = answer.text.partition("<style>")[2].partition("</style>")[0]
    assert security._hash(style) in (answer.header("content-security-policy") or "")


def test_a_websocket_is_closed() -> None:
    sent = []

    async def ask() -> None:
        async def send(message: object) -> None:
            sent.append(message)

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def inner(*_: object) -> None:
            raise AssertionError("it was let through")

        guard = Guard(inner, token=TOKEN, hosts=Hosts.of("127.0.0.1"))
        await guard({"type": "websocket", "path": "/", "headers": []}, receive, send)  # type: ignore[arg-type]

    run(ask())
    assert sent == [{"type": "websocket.close", "code": 1008}]
