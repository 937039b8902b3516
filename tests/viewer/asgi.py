"""A small client that asks an ASGI application in this process, as a browser would: with cookies, one at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from starlette.types import ASGIApp, Message

Pairs = Iterable[tuple[str, str]]
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    """Names in lower case."""
    body: bytes
    error: BaseException | None = None
    """What the application raised after it had answered, which a server would log."""

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name.lower()]
        assert len(found) < 2, f"{name} comes {len(found)} times"
        return found[0] if found else None

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body, which must be JSON as the standard has it: without NaN."""
        return json.loads(self.body, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def run(awaited: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, also where a loop is running: that of Playwright, when browser tests came before."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, awaited).result()


@dataclass
class Client:
    """Asks ``app``; keeps the cookies that it is given.

    >>> client = Client(app)
    >>> client.get("/?token=" + token).status
    303
    >>> client.get("/api/map", run=run_id, epoch=4).json["indices"]
    """

    app: ASGIApp
    host: str = "127.0.0.1:8000"
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, address: str, /, *, headers: Pairs = (), **query: Any) -> Answer:
        """``run=[a, b]`` names both."""
        pairs = [(key, one) for key, value in query.items() for one in (value if isinstance(value, list) else [value])]
        more = urlencode(pairs)
        glue = "&" if "?" in address else "?"
        return self.ask("GET", f"{address}{glue}{more}" if more else address, headers=headers)

    def ask(self, method: str, address: str, *, headers: Pairs = (), host: str | list[str] | None = None) -> Answer:
        """``address`` as it stands in a request line; what is not allowed there is escaped."""
        split = urlsplit(address if not address.startswith("//") else f"http://x{address}")
        hosts = [self.host] if host is None else [host] if isinstance(host, str) else host
        sent = [("host", one) for one in hosts] + [(key.lower(), value) for key, value in headers]
        if self.cookies:
            sent.append(("cookie", "; ".join(f"{key}={value}" for key, value in self.cookies.items())))
        raw = quote(split.path, safe="/%:@!$&'()*+,;=~-._\\")
        return self.raw(method, raw.encode(), quote(split.query, safe="=&%+/?:@!$'()*,;~-._").encode(), sent)

    def raw(self, method: str, path: bytes, query: bytes, headers: Pairs) -> Answer:
        """One request, byte by byte."""
        from urllib.parse import unquote

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "root_path": "",
            "query_string": query,
            "headers": [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        }
        answer = run(_ask(self.app, scope))
        for key, value in answer.headers:
            if key == "set-cookie":
                name, _, rest = value.partition("=")
                self.cookies[name] = rest.partition(";")[0]
        return answer


async def _ask(app: ASGIApp, scope: dict[str, Any]) -> Answer:
    got: list[Message] = []
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        got.append(message)

    error: BaseException | None = None
    try:
        await app(scope, receive, send)
    except Exception as e:
        if not got:
            raise
        error = e
    start = got[0]
    assert start["type"] == "http.response.start"
    headers = [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in start.get("headers", [])]
    return Answer(start["status"], headers, b"".join(message.get("body", b"") for message in got[1:]), error)


def entered(app: ASGIApp, token: str) -> Client:
    """A client that has shown the token."""
    client = Client(app)
    assert client.get("/runs", token=token).status == 303
    return client
