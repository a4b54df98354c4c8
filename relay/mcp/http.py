"""Streamable HTTP transport on 127.0.0.1, with a bearer token (M-29).

Web pages in a local browser can send requests here too, so requests with a foreign `Host` or
`Origin` are refused before the token is checked. Any user of the machine can connect: of
connections without a request that has the token only the newest are kept.
"""

from __future__ import annotations

import asyncio
import socket
from hmac import compare_digest
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"
_LOOPBACK: Final = "127.0.0.1"
_NAMES: Final = (_LOOPBACK, "localhost", "[::1]")
_BACKLOG: Final = 64
_MAX_UNKNOWN: Final = 64
"""Connections without a request that has the token. More are accepted at once, before the oldest
are closed: together they must not use up the process's files."""
_UNKNOWN_S: Final = 10.0
"""How long one may be without such a request."""
_KNOWN: Final = "rookery.known"
"""Key of a scope: whether the request has the token."""


class TokenGuard:
    """ASGI middleware: 403 for a foreign Host or Origin, 401 without the token."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}".encode() for name in _NAMES)
        self._origins = frozenset(b"http://" + host for host in self._hosts)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        scope[_KNOWN] = refusal is None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return PlainTextResponse("foreign Host\n", 403)
        if any(name == b"origin" and value.lower() not in self._origins for name, value in headers):
            return PlainTextResponse("foreign Origin\n", 403)
        tokens = [value for name, value in headers if name == b"authorization"]
        if len(tokens) != 1 or not self._is_token(tokens[0]):
            return PlainTextResponse(
                "missing or wrong bearer token: `rookery mcp` printed it\n",
                401,
                {"WWW-Authenticate": 'Bearer realm="rookery mcp"'},
            )
        return None

    def _is_token(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(token.strip(), self._token)


class _Connection(H11Protocol):
    """Closed if it has no request with the token within `_UNKNOWN_S`, or is the oldest of too
    many."""

    _is_late: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_late = self.loop.call_later(_UNKNOWN_S, self._close_unknown)
        unknown = [each for each in self.connections if isinstance(each, _Connection)]
        unknown = [each for each in unknown if not each._has_token]
        if len(unknown) > _MAX_UNKNOWN:
            min(unknown, key=lambda each: each._is_late.when())._close_unknown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_late.cancel()
        super().connection_lost(exc)

    @property
    def _has_token(self) -> bool:
        """Whether its last request has. There is no scope before the first one."""
        return self.scope is not None and bool(self.scope.get(_KNOWN))

    def _close_unknown(self) -> None:
        if not self._has_token:
            self.connections.discard(self)  # those that follow at once do not count it
            self.transport.abort()


async def serve_http(
    server: Server[Any], port: int, token: str, log: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C. `port` 0: any free port. `log` is called with the address and
    the token once the socket listens. Raises OSError if the port is in use."""
    bound = _bound(port)
    actual_port = bound.getsockname()[1]
    application = server.streamable_http_app(streamable_http_path=PATH, host=_LOOPBACK)
    http = uvicorn.Server(
        uvicorn.Config(
            TokenGuard(application, actual_port, token),
            http=_Connection,
            backlog=_BACKLOG,
            lifespan="on",
            log_config=None,
            log_level="critical",  # else each malformed request is a line
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    # uvicorn re-raises the signal after its shutdown; at that point nothing is left to do.
    asyncio.get_running_loop().add_signal_handler(SIGTERM, lambda: None)
    log(f"listening on http://{_LOOPBACK}:{actual_port}{PATH}")
    log(f"bearer token: {token}")
    with bound:
        await http.serve(sockets=[bound])


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_LOOPBACK, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{_LOOPBACK}:{port}") from error
    return bound
