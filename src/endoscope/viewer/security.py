"""Who may ask, and what a browser may do with the answer: the Host, the method, the token, and the headers.

Everything passes through `Guard` before any route sees it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endoscope.viewer import answers

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 20vh auto 0; padding: 0 1.5rem }
h1 { font-size: 1.25rem; font-weight: 600 }"""
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Endoscope</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>{_STYLE}</style></head>
<body>CONTENT</body></html>
"""


def _hash(style: str) -> str:
    """How a policy allows one style element, by what it holds."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_hash(_STYLE)}",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    return secrets.token_urlsafe(32)


def add_headers(headers: MutableHeaders) -> None:
    """What every answer carries; one that says how long it may be kept keeps its word."""
    headers.update(HEADERS)
    headers.setdefault("Cache-Control", "private, no-cache")


# ---------------------------------------------------------------- Host
@dataclass(frozen=True, slots=True)
class Hosts:
    """The names under which the server may be asked for: a foreign one is a page elsewhere that had its name changed.

    >>> Hosts.of("127.0.0.1").allows("localhost:8080")
    True
    """

    names: Collection[str]
    any_address: bool = False
    """Whether numeric addresses are all allowed: no name server can change what they mean."""

    @classmethod
    def of(cls, host: str) -> Hosts:
        """For a server that listens at ``host``."""
        if is_loopback(host):
            return cls(LOOPBACK_NAMES | {host.lower()})
        return cls(LOOPBACK_NAMES | {host.lower(), socket.gethostname().lower()}, any_address=True)

    def allows(self, header: str) -> bool:
        """Any port: one that is forwarded by ssh is another here than there."""
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", header)
        if found is None or (found[3] is not None and not 0 < int(found[3]) < 65536):
            return False
        name = (found[1] or found[2]).lower()
        if name in self.names:
            return (":" in name) == (found[1] is not None)
        return self.any_address and _is_address(name, version=6 if found[1] else 4)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(text: str, *, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


# ---------------------------------------------------------------- the guard
class Guard:
    """ASGI middleware that lets a request through when its Host is ours, it only reads, and it has the token."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Hosts) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self.cookie = cookie_name(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message))
            await send(message)

        answer = self._refused(scope) or self._app
        await answer(scope, receive, guarded)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.allows(hosts[0]):
            return refusal(scope, 400, "this server is not asked for under that name", "Use the address it printed.")
        if scope["method"] not in ("GET", "HEAD"):
            found = refusal(scope, 405, "this server only reads", "Use GET.")
            found.headers["Allow"] = "GET, HEAD"
            return found
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        if given:
            return self._entered(scope, query) if self._is_token(given[0]) else _no_token(scope)
        cookies = [cookie_parser(header).get(self.cookie, "") for header in headers.getlist("cookie")]
        return None if any(map(self._is_token, cookies)) else _no_token(scope)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogatepass"), self._token.encode())

    def _entered(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """The cookie, and on to the address without the token."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")  # two slashes would name another server
        found = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        found.headers["Cache-Control"] = "private, no-store"
        found.set_cookie(self.cookie, self._token, path="/", httponly=True, samesite="strict")
        return found


def cookie_name(token: str) -> str:
    """A name of its own for each server: browsers share cookies among all ports of a machine."""
    return f"endoscope_{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def _no_token(scope: Scope) -> Response:
    hint = "Open the whole address that endoscope view printed, with its token."
    return refusal(scope, 403, "this page needs the token of the server", hint)


def refusal(scope: Scope, status: int, message: str, hint: str = "") -> Response:
    """An error as JSON under /api/, and else as a page."""
    if scope["path"].startswith("/api/"):
        return answers.error(message, hint, status=status)
    text = f"<h1>{html.escape(message[:1].upper() + message[1:])}</h1><p>{html.escape(hint)}</p>"
    return HTMLResponse(_PAGE.replace("CONTENT", text), status)
