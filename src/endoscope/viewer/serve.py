"""Server: serves the viewer with uvicorn, and stops at once on a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable, Sequence
from types import FrameType

import PIL  # noqa: F401 - fail here rather than in every picture
import uvicorn
from anyio import to_thread

from endoscope.errors import ConfigError
from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library
from endoscope.viewer.security import Hosts, new_token

_SHUTDOWN_S = 1  # how long answers that are being sent may still take
_THREADS = 4  # requests answered at the same time: each may hold a large tensor in memory


class Server:
    """The viewer of the runs in some folders, at its own address.

    >>> server = Server(["runs"])
    >>> server.address
    'http://127.0.0.1:40123/?token=...'
    >>> server.run(ready=lambda: print("ready"))       # until SIGINT, SIGTERM, or stop() from another thread
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]], *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes a free one. `RunNotFoundError` for a missing folder, `ConfigError` for a port in use."""
        token = new_token()
        app = create_app(Library(folders), token=token, hosts=Hosts.of(host))
        self._socket = bind(host, port)
        self.address = f"http://{_in_url(host)}:{self._socket.getsockname()[1]}/?token={token}"
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,  # the token must not appear in a log
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        self._server = _Uvicorn(config)

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Answer requests until stopped; ``ready`` is called once requests are answered."""
        self._server.ready = ready
        log = logging.getLogger("uvicorn.error")
        log.addFilter(_is_not_cancelled)
        try:
            with self:
                self._server.run([self._socket])
        finally:
            log.removeFilter(_is_not_cancelled)

    def stop(self) -> None:
        self._server.end()

    def close(self) -> None:
        """Release the address; `run` does so at its end."""
        self._socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_not_cancelled(record: logging.LogRecord) -> bool:
    """False for the message about a request that was cancelled by the shutdown."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Uvicorn(uvicorn.Server):
    ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        to_thread.current_default_thread_limiter().total_tokens = _THREADS
        gc.freeze()  # imported modules stay; collecting garbage among them would delay answers by 0.1 s
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    def end(self) -> None:
        """Do not wait for connections that browsers keep open: the server only reads, so nothing is lost."""
        self.should_exit = self.force_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; `ConfigError` says why it cannot."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        hint = "choose another with --port, or 0 for a free one" if port else "choose another with --host"
        raise ConfigError(f"cannot listen at {host!r}, port {port}: {reason}; {hint}") from e


def _in_url(host: str) -> str:
    """The name by which a browser on this machine reaches a server that listens at ``host``."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host
