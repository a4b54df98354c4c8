"""Reconnector: keeps one connection to a relay open for the lifetime of its Client.

A lost connection is replaced after an exponential backoff with jitter, so that the clients of a
restarted relay do not reconnect at the same moment. The backoff starts anew when the relay said
that it stops or restarts. It never gives up; requests that wait for a connection have deadlines.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import aiohttp
import orjson

from relay.client.connection import Connection, body_of, http_session, is_bomb
from relay.client.errors import ClientClosed, NotARelay, Unanswered, Unreachable
from relay.errors import UserError
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.client.connection import Timeouts
    from relay.nostr.keys import SecretKey

MAX_FRAME: Final = 16 * 2**20
"""Largest message accepted from a relay, in bytes."""
_MAX_INFORMATION: Final = 2**20
_CLOSE_S: Final = 2.0
_STABLE_S: Final = 10.0
"""A connection that lasted this long resets the backoff."""
_ANNOUNCED: Final = frozenset({aiohttp.WSCloseCode.GOING_AWAY, aiohttp.WSCloseCode.SERVICE_RESTART})
"""Close codes of a relay that stops or restarts: the backoff begins again."""
_JITTER: Final = random.SystemRandom()


class Reconnector:
    """The connection to one relay. Opened and closed by its Client."""

    def __init__(
        self, url: str, keys: Sequence[SecretKey], timeouts: Timeouts, now: Callable[[], int]
    ) -> None:
        """`now`: seconds since 1970. Raises UserError if `url` is no ws:// or wss:// URL."""
        url = url.strip()
        if relay_address(url) is None or not url.lower().startswith(("ws://", "wss://")):
            raise UserError(f"not a relay URL: {url!r} (ws://… or wss://…)")
        self.url = url
        self.timeouts = timeouts
        self.now = now
        self.connection: Connection | None = None
        """The current connection; None while disconnected."""
        self.notices: deque[str] = deque(maxlen=32)
        self._keys = keys
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        # Not a future with a callback per waiter: it searches all of them when one is removed, and
        # during an outage there may be as many as publishes.
        self._changed = asyncio.Event()
        """Set while connected, and when the client has ended."""
        self.next_connection = asyncio.Event()
        """Set when there is another connection than now; then it is another Event."""
        self._ended: ClientClosed | None = None
        self._last_error = ""

    async def open(self) -> None:
        """Connect and authenticate. Raises Unreachable."""
        self._prepare()
        try:
            self._start(await self._first_socket())
            try:
                async with self.deadline(None, "a stable connection"):
                    await self.wait_connected()
            except Unanswered as error:
                raise Unreachable(self.url, str(error)) from None
        except BaseException:
            await self.close()
            raise

    def open_in_background(self) -> None:
        """Start to connect in the background."""
        self._prepare()
        self._start(None)

    async def close(self) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        finally:
            if self._session is not None:
                await self._session.close()

    async def wait_connected(self) -> Connection:
        """The current connection; waits for one. Raises ClientClosed."""
        if self._session is None:
            raise ClientClosed("use the client inside its `async with`")
        while True:
            await self._changed.wait()
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            if self.connection is not None and not self.connection.is_lost:
                return self.connection
            # Ended but not yet replaced: returning it would make the caller spin.
            self._set_disconnected()

    def backoff_s(self, attempt: int) -> float:
        """Backoff in seconds before the next attempt: exponential, bounded, with jitter."""
        longest = min(
            self.timeouts.max_backoff_s, self.timeouts.first_backoff_s * 2.0 ** min(attempt, 32)
        )
        return _JITTER.uniform(longest / 2, longest)

    @asynccontextmanager
    async def deadline(self, seconds: float | None, what: str) -> AsyncIterator[Callable[[], None]]:
        """Raises Unanswered when the block takes longer; None: the default of `timeouts`.

        Yields a function that restarts the deadline, if it has not passed.
        """
        seconds = self.timeouts.deadline_s if seconds is None else seconds
        loop = asyncio.get_running_loop()

        def restart() -> None:
            if not timeout.expired():  # it may have, while the block has not ended yet
                timeout.reschedule(loop.time() + seconds)

        try:
            async with asyncio.timeout(seconds) as timeout:
                yield restart
        except TimeoutError:
            why = (
                f"; no connection: {self._last_error}"
                if self.connection is None and self._last_error
                else ""
            )
            raise Unanswered(f"no answer within {seconds:g} s: waited for {what}{why}") from None

    async def information(self) -> dict[str, object]:
        """The relay information document (NIP-11). Raises Unreachable, NotARelay."""
        if self._session is None:
            raise ClientClosed("use the client inside its `async with`")
        try:
            async with self._session.get(
                "http" + self.url[2:], headers={"Accept": "application/nostr+json"}
            ) as response:
                body = await body_of(response, _MAX_INFORMATION)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.url, error_text(error)) from error
        try:
            document = orjson.loads(body or b"")
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise NotARelay(f"{self.url} returns no relay information document (NIP-11)")
        return document

    async def post(self, body: bytes, authorization: str) -> object:
        """The JSON reply to a NIP-86 call; None if there is none. Raises Unreachable."""
        if self._session is None:
            raise ClientClosed("use the client inside its `async with`")
        headers = {"Content-Type": "application/nostr+json+rpc", "Authorization": authorization}
        try:
            async with self._session.post(
                "http" + self.url[2:], data=body, headers=headers
            ) as response:
                reply = await response.content.read(_MAX_INFORMATION)
                while not response.content.at_eof() and len(reply) < MAX_FRAME:
                    reply += await response.content.read(_MAX_INFORMATION)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.url, error_text(error)) from error
        try:
            text = reply.decode()
            return None if is_bomb(text) else orjson.loads(text)
        except ValueError:
            return None

    def _prepare(self) -> None:
        if self._session is not None:
            raise ClientClosed("a client can be used once; create another")
        self._session = http_session()

    def _start(self, socket: aiohttp.ClientWebSocketResponse | None) -> None:
        self._task = asyncio.create_task(self._run(socket))
        self._task.add_done_callback(self._on_task_end)

    async def _first_socket(self) -> aiohttp.ClientWebSocketResponse:
        loop = asyncio.get_running_loop()
        give_up_at, attempt = loop.time() + self.timeouts.patience_s, 0
        while True:
            try:
                return await self._socket()
            except Unreachable:
                wait = self.backoff_s(attempt)
                if loop.time() + wait > give_up_at:
                    raise
            await asyncio.sleep(wait)
            attempt += 1

    async def _run(self, socket: aiohttp.ClientWebSocketResponse | None) -> None:
        loop = asyncio.get_running_loop()
        attempt, timeouts = 0, self.timeouts
        while True:
            while socket is None:
                try:
                    socket = await self._socket()
                except Unreachable as unreachable:
                    self._last_error = unreachable.why
                    await asyncio.sleep(self.backoff_s(attempt))
                    attempt += 1
            started = loop.time()
            connection = Connection(socket, self.url, self._keys, timeouts, self.now, self.notices)
            try:
                await connection.run(self._set_connected)
            finally:
                self._set_disconnected()
            if connection.is_login_late:  # else each connection to a slow relay ended like this
                timeouts = replace(timeouts, login_s=max(timeouts.login_s, timeouts.deadline_s))
            self._last_error = f"the connection ended ({socket.close_code})"
            if socket.close_code in _ANNOUNCED or loop.time() - started >= _STABLE_S:
                attempt = 0
            await asyncio.sleep(self.backoff_s(attempt))
            attempt, socket = attempt + 1, None

    async def _socket(self) -> aiohttp.ClientWebSocketResponse:
        assert self._session is not None
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                return await self._session.ws_connect(
                    self.url,
                    max_msg_size=MAX_FRAME,
                    compress=0,
                    heartbeat=self.timeouts.heartbeat_s,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except TimeoutError:
            raise Unreachable(self.url, f"no answer within {self.timeouts.connect_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.url, error_text(error)) from error

    def _set_connected(self, connection: Connection) -> None:
        self.connection = connection
        self._changed.set()
        self.next_connection.set()
        self.next_connection = asyncio.Event()

    def _set_disconnected(self) -> None:
        self.connection = None
        self._changed.clear()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self._ended = ClientClosed(
            f"the client failed: {error!r}" if error else "the client is closed"
        )
        self._ended.__cause__ = error
        self._changed.set()


def error_text(error: Exception) -> str:
    """The reason in a few words, without addresses or Python class names."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"HTTP {error.status} instead of a WebSocket handshake"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "certificate not trusted (set SSL_CERT_FILE for a private CA)"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "TLS handshake failed (a relay without TLS needs a ws:// URL)"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
