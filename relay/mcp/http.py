"""The server over streamable HTTP: on this machine only, for who has the token. M-29.

A page in a browser can send requests to this machine too: what was not meant for it (`Host`), or
comes from a page of another place (`Origin`), is refused before the token is looked at.
"""

from __future__ import annotations

import asyncio
import socket
from hmac import compare_digest
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"
_LOOPBACK: Final = "127.0.0.1"
_NAMES: Final = (_LOOPBACK, "localhost", "[::1]")
_BACKLOG: Final = 64


class Door:
    """Lets in requests of this machine that bear the token: 403 for others, 401 without it."""

    def __init__(self, inside: ASGIApp, port: int, token: str) -> None:
        self._inside = inside
        self._hosts = frozenset(f"{name}:{port}".encode() for name in _NAMES)
        self._origins = frozenset(b"http://" + host for host in self._hosts)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._inside if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return PlainTextResponse("foreign Host\n", 403)
        if any(name == b"origin" and value.lower() not in self._origins for name, value in headers):
            return PlainTextResponse("foreign Origin\n", 403)
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1 or not self._is_token(given[0]):
            return PlainTextResponse(
                "the bearer token that `rookery mcp` printed is missing or wrong\n",
                401,
                {"WWW-Authenticate": 'Bearer realm="rookery mcp"'},
            )
        return None

    def _is_token(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(token.strip(), self._token)


async def serve_http(
    server: Server[Any], port: int, token: str, say: Callable[[str], None]
) -> None:
    """Until SIGTERM or Ctrl-C. `port` 0: a free one. `say` is told the address, and the token,
    once connections are taken. Raises OSError for a port that is taken."""
    bound = _bound(port)
    taken = bound.getsockname()[1]
    application = server.streamable_http_app(streamable_http_path=PATH, host=_LOOPBACK)
    http = uvicorn.Server(
        uvicorn.Config(
            Door(application, taken, token),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    # uvicorn gives the signal on when it is done; here it has done its work by then.
    asyncio.get_running_loop().add_signal_handler(SIGTERM, lambda: None)
    say(f"listening on http://{_LOOPBACK}:{taken}{PATH}")
    say(f"bearer token: {token}")
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
