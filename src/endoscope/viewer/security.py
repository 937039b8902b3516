"""Security: which requests are allowed (Host, method, token), and the headers that restrict what a browser may do.

Every request passes through `Guard` before any route sees it.
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
    """How the policy allows one style element: by a hash of its content."""
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
    """Add the headers of every answer; a Cache-Control that is already there stays."""
    headers.update(HEADERS)
    headers.setdefault("Cache-Control", "private, no-cache")


# ---------------------------------------------------------------- Host
@dataclass(frozen=True, slots=True)
class Hosts:
    """The names a request may use for the server. A foreign name means DNS rebinding by a page elsewhere.

    >>> Hosts.of("127.0.0.1").allows("localhost:8080")
    True
    """

    names: Collection[str]
    any_address: bool = False
    """Whether every numeric address is allowed: DNS cannot change where it leads."""

    @classmethod
    def of(cls, host: str) -> Hosts:
        """For a server that listens at ``host``."""
        if is_loopback(host):
            return cls(LOOPBACK_NAMES | {host.lower()})
        return cls(LOOPBACK_NAMES | {host.lower(), socket.gethostname().lower()}, any_address=True)

    def allows(self, header: str) -> bool:
        """On any port: a port forwarded by ssh has another number here."""
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", header)
        if match is None or (match[3] is not None and not 0 < int(match[3]) < 65536):
            return False
        name = (match[1] or match[2]).lower()
        if name in self.names:
            return (":" in name) == (match[1] is not None)
        address = _address(name) if self.any_address else None
        return address is not None and address.version == (6 if match[1] else 4)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    address = _address(host)
    return address.is_loopback if address is not None else host.lower() == "localhost"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


# ---------------------------------------------------------------- the guard
class Guard:
    """ASGI middleware that accepts a request if its Host is ours, its method only reads, and it has the token."""

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
            return refusal(scope, 400, "this server has another name", "Use the address that endoscope view printed.")
        if scope["method"] not in ("GET", "HEAD"):
            page = refusal(scope, 405, "this server only reads", "Use GET.")
            page.headers["Allow"] = "GET, HEAD"
            return page
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for key, value in query if key == "token"]
        if tokens:
            return self._enter(scope, query) if self._is_token(tokens[0]) else _no_token(scope)
        cookies = [cookie_parser(header).get(self.cookie, "") for header in headers.getlist("cookie")]
        return None if any(map(self._is_token, cookies)) else _no_token(scope)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="surrogatepass"), self._token.encode())

    def _enter(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Set the cookie and redirect to the address without the token."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")  # two slashes would lead to another server
        redirect = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        redirect.headers["Cache-Control"] = "private, no-store"
        redirect.set_cookie(self.cookie, self._token, path="/", httponly=True, samesite="strict")
        return redirect


def cookie_name(token: str) -> str:
    """A different name for each server, because browsers share cookies among all ports of a machine."""
    return f"endoscope_{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def _no_token(scope: Scope) -> Response:
    hint = "Open the complete address that endoscope view printed, including the token."
    return refusal(scope, 403, "this page needs the server's token", hint)


def refusal(scope: Scope, status: int, message: str, hint: str = "") -> Response:
    """An error: JSON under /api/, elsewhere a page."""
    if scope["path"].startswith("/api/"):
        return answers.error(message, hint, status=status)
    content = f"<h1>{html.escape(message[:1].upper() + message[1:])}</h1><p>{html.escape(hint)}</p>"
    return HTMLResponse(_PAGE.replace("CONTENT", content), status)
